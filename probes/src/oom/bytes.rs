//! Searching and cutting in byte strings that nobody promised to be text.

/// Where `needle` first is in `hay`.
pub(crate) fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len()).position(|window| window == needle)
}

/// Where `needle` last is in `hay`.
pub(crate) fn rfind(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len()).rposition(|window| window == needle)
}

/// Whether `needle` is in `hay`.
pub(crate) fn contains(hay: &[u8], needle: &[u8]) -> bool {
    find(hay, needle).is_some()
}

/// What is before and after the first `needle`.
pub(crate) fn split_once<'a>(hay: &'a [u8], needle: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    cut(hay, find(hay, needle)?, needle.len())
}

/// What is before and after the last `needle`.
pub(crate) fn rsplit_once<'a>(hay: &'a [u8], needle: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    cut(hay, rfind(hay, needle)?, needle.len())
}

/// What is before `at` and what is `width` bytes after it.
fn cut(hay: &[u8], at: usize, width: usize) -> Option<(&[u8], &[u8])> {
    Some((hay.get(..at)?, hay.get(at.checked_add(width)?..)?))
}

/// The whole of `digits` as a decimal number; no sign, no blank.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    match leading_number(digits)? {
        (value, []) => Some(value),
        (_, [_, ..]) => None,
    }
}

/// The decimal number at the start of `text`, and what follows it.
pub(crate) fn leading_number(text: &[u8]) -> Option<(u64, &[u8])> {
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at_checked(length)?;
    Some((std::str::from_utf8(digits).ok()?.parse().ok()?, rest))
}

/// A process id at the start of `text`: a positive number of the kernel's pid type, and what follows it.
pub(crate) fn leading_pid(text: &[u8]) -> Option<(u32, &[u8])> {
    let (value, rest) = leading_number(text)?;
    let pid = u32::try_from(value).ok().filter(|&pid| pid > 0 && pid <= i32::MAX.unsigned_abs())?;
    Some((pid, rest))
}

/// Bytes as text: what is UTF-8 stays as it is, any other byte becomes `\xNN`.
pub(crate) fn legible(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}
