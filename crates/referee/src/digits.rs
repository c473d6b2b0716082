//! Bytes as hexadecimal digits: in messages, in digests and in handles.

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that hexadecimal digits are, if they are such.
pub fn unhex(digits: &str) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.len().is_multiple_of(2).then(|| digits.as_bytes().chunks(2).map(pair).collect::<Option<_>>())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_of_hexadecimal_as_they_went_in() {
        assert_eq!(unhex(&hex(&[0, 9, 171, 255])), Some(vec![0, 9, 171, 255]));
        assert!(["0", "0x", "é1"].iter().all(|digits| unhex(digits).is_none()));
    }
}
