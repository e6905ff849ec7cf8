//! Hexadecimal digits.

/// The bytes of digits of either case.
pub fn decode(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
    digits.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits() {
        assert_eq!(decode(b"00ff1A"), Some(vec![0, 255, 26]));
        assert_eq!(decode(b""), Some(Vec::new()));
        assert_eq!(decode(b"0"), None);
        assert_eq!(decode(b"0g"), None);
    }
}
