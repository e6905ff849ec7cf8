//! numeric, as bytes of a stripe and as PostgreSQL's varlena. Layout: src/backend/utils/adt/numeric.c.

const NUMERIC_SPECIAL: u16 = 0xC000;
const NUMERIC_SHORT: u16 = 0x8000;

/// The value of a numeric times 10^scale; None when it is NaN or infinite, displays with another
/// scale, or does not fit. Layout: src/backend/utils/adt/numeric.c.
pub fn parse_numeric(bytes: &[u8], scale: u8) -> Option<i128> {
    let word = |at: usize| -> Option<u16> {
        Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
    };
    let header = word(0)?;
    let (negative, display_scale, weight, digits_at) =
        if header & NUMERIC_SPECIAL == NUMERIC_SPECIAL {
            return None;
        } else if header & NUMERIC_SHORT != 0 {
            let magnitude = i32::from(header & 0x3f);
            let weight = if header & 0x40 != 0 { magnitude - 64 } else { magnitude };
            (header & 0x2000 != 0, (header & 0x1f80) >> 7, weight, 2)
        } else {
            (header & 0xC000 == 0x4000, header & 0x3fff, i32::from(word(2)? as i16), 4)
        };
    if display_scale != u16::from(scale) {
        return None;
    }
    let mut sum: i128 = 0;
    let count = (bytes.len() - digits_at) / 2;
    for i in 0..count {
        let digit = i128::from(word(digits_at + 2 * i)?);
        let exponent = 4 * (weight - i as i32) + i32::from(scale);
        let term = if exponent >= 0 {
            digit.checked_mul(10i128.checked_pow(exponent as u32)?)?
        } else {
            let divisor = 10i128.checked_pow((-exponent) as u32)?;
            if digit % divisor != 0 {
                return None;
            }
            digit / divisor
        };
        sum = sum.checked_add(term)?;
    }
    Some(if negative { -sum } else { sum })
}

/// Append the varlena (4-byte header) of `value` / 10^scale to `out`.
pub fn form_numeric(value: i128, scale: u8, out: &mut Vec<u8>) {
    let fraction_digits = usize::from(scale).div_ceil(4);
    let shift = fraction_digits * 4 - usize::from(scale);
    let mut rest = value.unsigned_abs();
    // Least significant digit first. Shifting the whole value could overflow, so the lowest digit
    // takes only the decimals that belong to it.
    let mut digits = [0u16; 12];
    let mut n = 0;
    if shift > 0 {
        let keep = 10u128.pow((4 - shift) as u32);
        let (whole, low) = match u64::try_from(rest) {
            Ok(rest) => (u128::from(rest / keep as u64), u128::from(rest % keep as u64)),
            Err(_) => (rest / keep, rest % keep),
        };
        digits[0] = (low * 10u128.pow(shift as u32)) as u16;
        rest = whole;
        n = 1;
    }
    // Divisions of 128 bits take several times as long.
    while rest > u128::from(u64::MAX) {
        digits[n] = (rest % 10_000) as u16;
        rest /= 10_000;
        n += 1;
    }
    let mut rest = rest as u64;
    while rest > 0 || n < fraction_digits {
        digits[n] = (rest % 10_000) as u16;
        rest /= 10_000;
        n += 1;
    }
    let low = digits[..n].iter().position(|d| *d != 0).unwrap_or(n);
    let high = digits[..n].iter().rposition(|d| *d != 0).map_or(low, |p| p + 1);
    let weight = if high > low { high as i32 - 1 - fraction_digits as i32 } else { 0 };
    let negative = value < 0;
    let count = high - low;
    let len = 4 + 2 + 2 * count;
    out.extend_from_slice(&((len as u32) << 2).to_le_bytes());
    let header = NUMERIC_SHORT
        | if negative { 0x2000 } else { 0 }
        | (u16::from(scale) << 7)
        | if weight < 0 { 0x40 } else { 0 }
        | (weight & 0x3f) as u16;
    out.extend_from_slice(&header.to_le_bytes());
    for d in digits[low..high].iter().rev() {
        out.extend_from_slice(&d.to_le_bytes());
    }
}

/// The value of a numeric times 10^scale whatever scale it displays with; None when it is NaN or
/// infinite, has more decimals, or does not fit.
pub fn parse_numeric_rescaled(bytes: &[u8], scale: u8) -> Option<i128> {
    let header = u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?);
    let display = if header & NUMERIC_SPECIAL == NUMERIC_SPECIAL {
        return None;
    } else if header & NUMERIC_SHORT != 0 {
        (header & 0x1f80) >> 7
    } else {
        header & 0x3fff
    };
    let display = u8::try_from(display).ok()?;
    let value = parse_numeric(bytes, display)?;
    if display <= scale {
        return value.checked_mul(10i128.checked_pow(u32::from(scale - display))?);
    }
    let divisor = 10i128.checked_pow(u32::from(display - scale))?;
    (value % divisor == 0).then_some(value / divisor)
}

#[cfg(test)]
mod tests {
    use super::{form_numeric, parse_numeric};

    #[test]
    fn numerics_round_trip() {
        let mut values = vec![0i128, 1, -1, 9, 10, 99, 100, 9_999, 10_000, 10_001, 123_456_789];
        values.extend([10i128.pow(37), 10i128.pow(38) - 1, -(10i128.pow(38) - 1), 5_000_000]);
        for scale in [0u8, 1, 2, 3, 4, 5, 7, 8, 18, 37, 38] {
            for value in &values {
                let mut bytes = Vec::new();
                form_numeric(*value, scale, &mut bytes);
                assert_eq!(
                    parse_numeric(&bytes[4..], scale),
                    Some(*value),
                    "{value} scale {scale}"
                );
            }
        }
    }
}
