//! The inputs worth mutating.

use rand::Rng as _;
use rand::rngs::SmallRng;

/// The most inputs, and the most bytes of them all together.
const INPUTS_MAX: usize = 20_000;
const BYTES_MAX: usize = 64 << 20;
/// Of ten picks, so many are of the newest quarter: they stand where nothing was before.
const NEWEST_OF_TEN: u32 = 5;

pub(crate) struct Queue {
    inputs: Vec<Vec<u8>>,
    bytes: usize,
    /// Those of the corpus are never given up.
    seeds: usize,
}

impl Queue {
    /// Begins with the corpus.
    pub(crate) fn new(seeds: Vec<Vec<u8>>) -> Self {
        Self {
            bytes: seeds.iter().map(Vec::len).sum(),
            seeds: seeds.len(),
            inputs: seeds,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.inputs.len()
    }

    /// What was found since the beginning.
    pub(crate) fn found(&self) -> &[Vec<u8>] {
        &self.inputs[self.seeds..]
    }

    /// Adds an input; where there is no room, another one that was found gives its place up.
    pub(crate) fn add(&mut self, input: Vec<u8>, chance: &mut SmallRng) {
        self.bytes += input.len();
        self.inputs.push(input);
        while self.inputs.len() > INPUTS_MAX || self.bytes > BYTES_MAX {
            if self.inputs.len() <= self.seeds {
                return;
            }
            let place = chance.random_range(self.seeds..self.inputs.len());
            self.bytes -= self.inputs.swap_remove(place).len();
        }
    }

    pub(crate) fn pick(&self, chance: &mut SmallRng) -> &[u8] {
        let count = self.inputs.len();
        let first = if chance.random_ratio(NEWEST_OF_TEN, 10) {
            count - count.div_ceil(4)
        } else {
            0
        };
        self.inputs
            .get(chance.random_range(first..count.max(first + 1)))
            .map_or(&[], Vec::as_slice)
    }
}
