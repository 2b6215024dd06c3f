//! Machine code as it lies in files: ELF of 64 bits (System V ABI, chapter 4). A driver is given an address and reads what tables there
//! point at, so that a file which was cut off would have it read anywhere.

use std::ops::Range;

/// Bytes of the header of a file.
const HEADER: usize = 64;
/// Sections that take no room in the file (`SHT_NOBITS`).
const NO_BITS: u64 = 8;

/// Whether an image's tables and all that they point at lie in it.
pub(crate) fn is_whole(image: &[u8]) -> bool {
    image.len() >= HEADER && image.starts_with(b"\x7fELF\x02") && parts_are_inside(image).is_some()
}

/// None where something is not inside.
fn parts_are_inside(image: &[u8]) -> Option<()> {
    let segments = (
        number(image, 0x20..0x28)?,
        number(image, 0x36..0x38)?,
        number(image, 0x38..0x3a)?,
    );
    let sections = (
        number(image, 0x28..0x30)?,
        number(image, 0x3a..0x3c)?,
        number(image, 0x3c..0x3e)?,
    );
    // Of a segment and of a section, where place and size of what it points at are told.
    for (table, place, size) in [
        (segments, 0x08..0x10, 0x20..0x28),
        (sections, 0x18..0x20, 0x20..0x28),
    ] {
        let (at, bytes, count) = table;
        inside(image, at, bytes.checked_mul(count)?)?;
        for i in 0..count {
            let entry = usize::try_from(at + i * bytes).ok()?;
            let field = |of: &Range<usize>| number(image, entry + of.start..entry + of.end);
            let empty = table == sections && field(&(0x04..0x08))? == NO_BITS;
            if !empty {
                inside(image, field(&place)?, field(&size)?)?;
            }
        }
    }
    Some(())
}

fn inside(image: &[u8], at: u64, bytes: u64) -> Option<()> {
    (at.checked_add(bytes)? <= image.len() as u64).then_some(())
}

/// The little-endian number in these bytes.
fn number(image: &[u8], bytes: Range<usize>) -> Option<u64> {
    let bytes = image.get(bytes)?;
    Some(
        bytes
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the tables of segments and of sections are.
    const TABLES: [usize; 2] = [HEADER + 16, HEADER + 16 + 56];

    /// A file of a segment and a section of the same 16 bytes, whose tables are last.
    fn image() -> Vec<u8> {
        let [segment, section] = TABLES;
        let mut image = vec![0; section + 64];
        image[..5].copy_from_slice(b"\x7fELF\x02");
        (image[0x20], image[0x36], image[0x38]) = (segment as u8, 56, 1);
        (image[0x28], image[0x3a], image[0x3c]) = (section as u8, 64, 1);
        (image[segment + 0x08], image[segment + 0x20]) = (HEADER as u8, 16);
        (image[section + 0x18], image[section + 0x20]) = (HEADER as u8, 16);
        image
    }

    #[test]
    fn what_was_cut_off_is_not_whole() {
        let whole = image();
        assert!(is_whole(&whole));
        for end in 0..whole.len() {
            assert!(!is_whole(&whole[..end]), "{end}");
        }
        // A segment or section that would end behind the file, or have no end.
        for table in TABLES {
            for size in [&[255][..], &[255; 8]] {
                let mut beyond = image();
                beyond[table + 0x20..][..size.len()].copy_from_slice(size);
                assert!(!is_whole(&beyond), "{table}");
            }
        }
    }
}
