//! The one way in which a closed set is written down here: an enum, its `ALL` list, one spelling for each member.

/// Declares an enum of unit members with `ALL`, `as_str`, `Display`, `FromStr` and serde in the same spelling.
macro_rules! closed_set {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $( $(#[$member_meta:meta])* $member:ident = $text:literal ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        pub enum $name {
            $( $(#[$member_meta])* #[serde(rename = $text)] $member ),+
        }

        impl $name {
            /// Every member, in the order in which they are declared.
            pub const ALL: &'static [Self] = &[ $( Self::$member ),+ ];

            /// The member's one spelling.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$member => $text ),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::UnknownMember;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::ALL
                    .iter()
                    .copied()
                    .find(|member| member.as_str() == text)
                    .ok_or_else(|| $crate::UnknownMember::new(stringify!($name), text))
            }
        }
    };
}

pub(crate) use closed_set;

/// A text that names no member of a closed set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not one of the spellings of {set}")]
pub struct UnknownMember {
    set: &'static str,
    text: String,
}

impl UnknownMember {
    /// Says that `text` names no member of `set`. Only its beginning is kept.
    #[must_use]
    pub fn new(set: &'static str, text: &str) -> Self {
        Self { set, text: text.chars().take(80).collect() }
    }
}
