//! What is fuzzed: everything that takes bytes from outside, through its public face.

mod config;
mod door;
mod heads;
mod http;
mod peers;
mod rpc;
mod store;
mod texts;

/// Runs the shipped code on inputs.
pub trait Target {
    /// Makes itself ready for the next input; what this costs is not counted.
    fn prepare(&mut self) {}

    /// Runs one input. An error is a broken promise, in words; what stands before its first colon is the
    /// same for the same bug.
    fn run(&mut self, input: &[u8]) -> Result<(), String>;
}

/// A target by its name.
pub struct Kind {
    /// Its name, and that of its folder in the corpus.
    pub name: &'static str,
    /// What inputs are made of: a word in each line, in which `\\n` is the end of a line.
    pub words: &'static str,
    /// Memory that an input may take however short it is: pages that are read, buffers, connections.
    pub memory_base: usize,
    /// Memory that an input may take for each of its bytes.
    pub memory_per_byte: usize,
    /// Sets it up.
    pub make: fn() -> Box<dyn Target>,
}

/// What comes over the network is held in a few times its size; a tree of JSON values made of tiny objects
/// would be eighty times.
const PER_BYTE: usize = 32;
/// What an operator writes is short, and every line of it may be answered with a problem in words.
const PER_BYTE_OF_CONFIG: usize = 256;

/// One byte of a row may stand for a whole event of a tx's history.
const PER_BYTE_OF_ROWS: usize = 512;

/// Every target.
pub const KINDS: [Kind; 8] = [
    Kind {
        name: "http",
        words: include_str!("../../words/http"),
        memory_base: 4 << 20,
        memory_per_byte: PER_BYTE,
        make: http::make,
    },
    Kind {
        name: "door",
        words: include_str!("../../words/door"),
        memory_base: 2 << 20,
        memory_per_byte: PER_BYTE,
        make: door::make,
    },
    Kind {
        name: "peers",
        words: include_str!("../../words/peers"),
        memory_base: 512 << 10,
        memory_per_byte: PER_BYTE,
        make: peers::make,
    },
    Kind {
        name: "rpc",
        words: include_str!("../../words/rpc"),
        memory_base: 3 << 20,
        memory_per_byte: PER_BYTE,
        make: rpc::make,
    },
    Kind {
        name: "heads",
        words: include_str!("../../words/heads"),
        memory_base: 512 << 10,
        memory_per_byte: PER_BYTE,
        make: heads::make,
    },
    Kind {
        name: "config",
        words: include_str!("../../words/config"),
        memory_base: 512 << 10,
        memory_per_byte: PER_BYTE_OF_CONFIG,
        make: config::make,
    },
    Kind {
        name: "store",
        words: include_str!("../../words/store"),
        memory_base: 1 << 20,
        memory_per_byte: PER_BYTE_OF_ROWS,
        make: store::make,
    },
    Kind {
        name: "texts",
        words: include_str!("../../words/texts"),
        memory_base: 64 << 10,
        memory_per_byte: PER_BYTE,
        make: texts::make,
    },
];

/// The target of this name.
#[must_use]
pub fn kind(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}
