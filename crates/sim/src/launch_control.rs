//! The answers of cluster launch control: what a cluster is told that asked for the work of one that has not begun.
//! What the sixteen bytes mean is the hardware's own; here they are a mark, whether a cluster was cancelled, and where
//! its first block is in the grid.

/// Bytes of an answer.
pub(crate) const BYTES: u32 = 16;
/// Tells an answer from other bytes, and in the lowest bit one kind from the other.
const MARK: u32 = 0x6c63_6c00;

/// An answer that says no.
pub(crate) const REFUSED: [u8; 16] = answer([u32::MAX; 3], 0);

/// An answer that says yes.
pub(crate) fn cancelled(first: [u32; 3]) -> [u8; 16] {
    answer(first, 1)
}

const fn answer([x, y, z]: [u32; 3], cancelled: u32) -> [u8; 16] {
    let (x, y, z, mark) = (x as u128, y as u128, z as u128, (MARK | cancelled) as u128);
    (x | y << 32 | z << 64 | mark << 96).to_le_bytes()
}

/// The first block of the cluster that two registers tell of, or that there is none; nothing if they are no answer.
pub(crate) fn read([low, high]: [u64; 2]) -> Option<Option<[u32; 3]>> {
    let mark = (high >> 32) as u32;
    let first = [low as u32, (low >> 32) as u32, high as u32];
    (mark & !1 == MARK).then_some((mark & 1 == 1).then_some(first))
}
