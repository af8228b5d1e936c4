//! Writing and reading small binary rows: fixed arrays, numbers of variable length, texts.

use thiserror::Error;

/// Why stored bytes cannot be read.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("stored {0} cannot be read")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Seven bits per byte, the lowest first; the top bit is set when more follow.
pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = number.to_le_bytes()[0] & 0x7f;
        number >>= 7;
        if number == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

/// The rest of the bytes, and what they are part of (for the error).
pub(super) struct ByteReader<'a> {
    left: &'a [u8],
    of: &'static str,
}

impl<'a> ByteReader<'a> {
    pub(super) fn new(bytes: &'a [u8], of: &'static str) -> Self {
        Self { left: bytes, of }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.left)
    }

    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, left) = self.left.split_at_checked(len).ok_or(self.malformed())?;
        self.left = left;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let taken = self.bytes(N)?;
        taken.try_into().map_err(|_wrong_length| self.malformed())
    }

    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit only.
            let placed = part << shift;
            if placed >> shift != part {
                return Err(self.malformed());
            }
            number |= placed;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(self.malformed())
    }

    /// A text with its length before it.
    pub(super) fn text(&mut self) -> Result<String, Malformed> {
        let len = usize::try_from(self.number()?).map_err(|_too_long| self.malformed())?;
        let bytes = self.bytes(len)?;
        String::from_utf8(bytes.into()).map_err(|_not_utf8| self.malformed())
    }

    pub(super) fn malformed(&self) -> Malformed {
        Malformed(self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length_round_trip() {
        for number in (0..64)
            .flat_map(|bit| [1_u64 << bit, (1 << bit) - 1])
            .chain([u64::MAX])
        {
            let mut out = Vec::new();
            put_number(&mut out, number);
            let mut reader = ByteReader::new(&out, "number");
            assert_eq!(reader.number(), Ok(number));
            assert!(reader.is_empty());
        }
    }

    #[test]
    fn truncated_or_overlong_number_is_refused() {
        let mut reader = ByteReader::new(&[0x80], "number");
        assert_eq!(reader.number(), Err(Malformed("number")));
        let mut reader = ByteReader::new(&[0xff; 11], "number");
        assert_eq!(reader.number(), Err(Malformed("number")));
        let mut reader = ByteReader::new(&[0x05, b'a'], "text");
        assert_eq!(reader.text(), Err(Malformed("text")));
        let mut reader = ByteReader::new(&[0x01, 0xff], "text");
        assert_eq!(reader.text(), Err(Malformed("text")));
    }
}
