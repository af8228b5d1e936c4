//! Hashes that are the same in every process and version.

use std::hash::{Hash, Hasher};

use domain::{LaneKey, NodeName};

/// The weight of a node for a lane: the node of the highest one is preferred.
pub(crate) fn rendezvous_hash(lane: LaneKey, node: &NodeName) -> u64 {
    let mut hasher = Fnv::default();
    lane.hash(&mut hasher);
    node.0.hash(&mut hasher);
    // The last bytes of FNV hardly reach its high bits: mix once more.
    let mut mixed = hasher.finish();
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}

/// FNV-1a, because the standard library's hasher differs between versions.
pub(crate) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
