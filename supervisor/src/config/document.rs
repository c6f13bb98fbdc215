//! The TOML text as a tree in which every key and value knows its line.
//!
//! The tree is walked by hand: a derived deserializer stops at the first unknown key or wrong type, and whoever corrects a
//! file wants to hear of everything at once.

use std::{cell::RefCell, collections::BTreeSet, ops::Range};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::problem::{Problem, has_userinfo, looks_secret, nearest, shown};

/// Why a value is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) rule: String,
    pub(super) remedy: String,
}

impl Refusal {
    pub(super) fn new(rule: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { rule: rule.into(), remedy: remedy.into() }
    }
}

/// Where a value stands, and how it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) key: String,
    pub(super) shown: String,
}

/// A value and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

/// The text, and what was found wrong with it so far.
pub(super) struct Document<'t> {
    text: &'t str,
    line_starts: Vec<usize>,
    problems: RefCell<BTreeSet<Problem>>,
}

impl<'t> Document<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let line_starts = std::iter::once(0)
            .chain(text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at + 1))
            .collect();
        Self { text, line_starts, problems: RefCell::default() }
    }

    /// The tree; `None` if the text is not TOML, which is then among the problems.
    pub(super) fn tree(&self) -> Option<DeTable<'t>> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        if errors.is_empty() {
            return Some(table.into_inner());
        }
        let mut lines = BTreeSet::new();
        for error in errors {
            let line = error.span().map(|span| self.line(&span));
            // What follows an error on its line is mostly its echo.
            if lines.insert(line) {
                self.report(Problem {
                    line,
                    key: String::new(),
                    value: None,
                    rule: format!("is not TOML: {}", shown(error.message())),
                    remedy: "correct the syntax; see https://toml.io".to_owned(),
                });
            }
        }
        None
    }

    pub(super) fn report(&self, problem: Problem) {
        self.problems.borrow_mut().insert(problem);
    }

    /// Reports that a value breaks a rule.
    pub(super) fn refuse(&self, place: &Place, refusal: Refusal) {
        self.report(Problem {
            line: Some(place.line),
            key: place.key.clone(),
            value: Some(place.shown.clone()),
            rule: refusal.rule,
            remedy: refusal.remedy,
        });
    }

    /// Everything that is wrong, by line.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner().into_iter().collect()
    }

    fn line(&self, span: &Range<usize>) -> usize {
        self.line_starts.partition_point(|start| *start <= span.start)
    }

    /// The place of a value under a key; what may be a secret is not repeated.
    pub(super) fn place(&self, key: String, value: &Spanned<DeValue<'_>>) -> Place {
        let span = value.span();
        let text = self.text.get(span.clone()).unwrap_or_default();
        let compound = value.get_ref().is_array() || value.get_ref().is_table();
        let secret = looks_secret(&key) || has_userinfo(text) || (compound && looks_secret(text));
        let shown = if secret { "(not shown)".to_owned() } else { shown(text) };
        Place { line: self.line(&span), key, shown }
    }
}

/// One table of the tree, whose keys are all known or reported.
pub(super) struct Section<'d, 't> {
    pub(super) doc: &'d Document<'t>,
    prefix: String,
    line: Option<usize>,
    table: &'d DeTable<'t>,
}

impl<'d, 't> Section<'d, 't> {
    /// The table of the whole file.
    pub(super) fn top(doc: &'d Document<'t>, table: &'d DeTable<'t>, known: &[&str]) -> Self {
        let section = Self { doc, prefix: String::new(), line: None, table };
        section.refuse_unknown(known);
        section
    }

    fn refuse_unknown(&self, known: &[&str]) {
        for (key, value) in self.table {
            let name = key.get_ref().as_ref();
            if known.contains(&name) {
                continue;
            }
            let remedy = nearest(name, known).map_or_else(
                || format!("remove it; known here: {}", known.join(", ")),
                |near| format!("did you mean {near}?"),
            );
            let place = self.doc.place(self.path(name), value);
            let line = self.doc.line(&key.span());
            self.doc.refuse(&Place { line, ..place }, Refusal::new("is not a known key", remedy));
        }
    }

    /// The dotted path of a key in this table.
    pub(super) fn path(&self, key: &str) -> String {
        let key = shown(key);
        if self.prefix.is_empty() { key } else { format!("{}.{key}", self.prefix) }
    }

    /// Where this table is written; `None` for the whole file.
    pub(super) fn line(&self) -> Option<usize> {
        self.line
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.get(key).is_some()
    }

    /// Reports a key that must be there and is not.
    pub(super) fn require(&self, key: &str, remedy: &str) {
        if !self.has(key) {
            self.doc.report(Problem {
                line: self.line,
                key: self.path(key),
                value: None,
                rule: "is missing".to_owned(),
                remedy: remedy.to_owned(),
            });
        }
    }

    /// A value as `parse` understands it; a refusal is reported and reads like an absent key.
    pub(super) fn read<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&DeValue<'t>) -> Result<T, Refusal>,
    ) -> Option<At<T>> {
        let value = self.table.get(key)?;
        let place = self.doc.place(self.path(key), value);
        match parse(value.get_ref()) {
            Ok(value) => Some(At { value, place }),
            Err(refusal) => {
                self.doc.refuse(&place, refusal);
                None
            }
        }
    }

    /// A table below this one.
    pub(super) fn section(&self, key: &str, known: &[&str]) -> Option<Self> {
        let value = self.table.get(key)?;
        self.open(self.path(key), value, known)
    }

    /// The tables of an array of tables; paths count from 0.
    pub(super) fn sections(&self, key: &str, known: &[&str]) -> Vec<Self> {
        let Some(value) = self.table.get(key) else { return Vec::new() };
        let Some(array) = value.get_ref().as_array() else {
            let refusal =
                Refusal::new("must be an array of tables", format!("write [[{key}]] for each"));
            self.doc.refuse(&self.doc.place(self.path(key), value), refusal);
            return Vec::new();
        };
        let path = self.path(key);
        array
            .iter()
            .enumerate()
            .filter_map(|(index, value)| self.open(format!("{path}[{index}]"), value, known))
            .collect()
    }

    /// The entries of a table whose keys are free.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'d str, &'d Spanned<DeValue<'t>>)> {
        self.table.iter().map(|(key, value)| (key.get_ref().as_ref(), value))
    }

    /// A table below this one whose keys are free.
    pub(super) fn free_section(&self, key: &str) -> Option<Self> {
        let value = self.table.get(key)?;
        self.table_at(self.path(key), value)
    }

    fn open(
        &self,
        prefix: String,
        value: &'d Spanned<DeValue<'t>>,
        known: &[&str],
    ) -> Option<Self> {
        let section = self.table_at(prefix, value)?;
        section.refuse_unknown(known);
        Some(section)
    }

    fn table_at(&self, prefix: String, value: &'d Spanned<DeValue<'t>>) -> Option<Self> {
        let place = self.doc.place(prefix, value);
        match value.get_ref().as_table() {
            Some(table) => {
                Some(Self { doc: self.doc, prefix: place.key, line: Some(place.line), table })
            }
            None => {
                let rule = format!("must be a table, not {}", value.get_ref().type_str());
                self.doc.refuse(&place, Refusal::new(rule, "write { key = value, ... }"));
                None
            }
        }
    }
}
