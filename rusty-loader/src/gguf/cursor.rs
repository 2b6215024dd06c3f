//! Reading little-endian values from untrusted bytes: every read is bounded, every failure says where.

/// A position in the header of a GGUF file.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// A reason without the file's name, which the caller adds.
pub(super) type Reason<T> = Result<T, String>;

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn take(&mut self, len: u64, what: &str) -> Reason<&'a [u8]> {
        let fits = usize::try_from(len).ok().filter(|&n| n <= self.remaining());
        let Some(len) = fits else {
            return Err(format!(
                "{what} at byte {} needs {len} bytes, but only {} are left: the file is cut short or corrupt",
                self.at,
                self.remaining()
            ));
        };
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Reason<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &str) -> Reason<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Reason<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A length-prefixed string of at most `limit` bytes.
    pub(super) fn string(&mut self, limit: u64, what: &str) -> Reason<&'a [u8]> {
        let len = self.u64(what)?;
        if len > limit {
            return Err(format!(
                "{what} at byte {} claims {len} bytes; at most {limit} are accepted",
                self.at
            ));
        }
        self.take(len, what)
    }

    /// A length-prefixed string that must be UTF-8.
    pub(super) fn name(&mut self, limit: u64, what: &str) -> Reason<&'a str> {
        let at = self.at;
        std::str::from_utf8(self.string(limit, what)?)
            .map_err(|_| format!("{what} at byte {at} is not UTF-8"))
    }

    /// Refuses a count of things of at least `least` bytes each that the file cannot hold, before anything
    /// is allocated for them.
    pub(super) fn bounded(&self, count: u64, least: u64, what: &str) -> Reason<()> {
        match count.checked_mul(least) {
            Some(bytes) if bytes <= self.remaining() as u64 => Ok(()),
            _ => Err(format!(
                "{count} {what} are announced at byte {}, more than the {} bytes left can hold",
                self.at,
                self.remaining()
            )),
        }
    }
}
