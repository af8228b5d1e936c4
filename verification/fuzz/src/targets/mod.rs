//! What is fuzzed: everything that takes bytes from outside, through its public face.

mod access;
mod config;
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

    /// Runs one input. An error is a message about a broken promise; what stands before its first colon is the
    /// same for the same bug.
    fn run(&mut self, input: &[u8]) -> Result<(), String>;
}

/// A target by its name.
pub struct Kind {
    /// Its name, and that of its folder in the corpus.
    pub name: &'static str,
    /// Its dictionary: a token in each line, in which `\\n` is the end of a line.
    pub dictionary: &'static str,
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
        dictionary: include_str!("../../dictionaries/http"),
        memory_base: 4 << 20,
        memory_per_byte: PER_BYTE,
        make: http::make,
    },
    Kind {
        name: "access",
        dictionary: include_str!("../../dictionaries/access"),
        memory_base: 2 << 20,
        memory_per_byte: PER_BYTE,
        make: access::make,
    },
    Kind {
        name: "peers",
        dictionary: include_str!("../../dictionaries/peers"),
        memory_base: 512 << 10,
        memory_per_byte: PER_BYTE,
        make: peers::make,
    },
    Kind {
        name: "rpc",
        dictionary: include_str!("../../dictionaries/rpc"),
        memory_base: 3 << 20,
        memory_per_byte: PER_BYTE,
        make: rpc::make,
    },
    Kind {
        name: "heads",
        dictionary: include_str!("../../dictionaries/heads"),
        memory_base: 512 << 10,
        memory_per_byte: PER_BYTE,
        make: heads::make,
    },
    Kind {
        name: "config",
        dictionary: include_str!("../../dictionaries/config"),
        memory_base: 512 << 10,
        memory_per_byte: PER_BYTE_OF_CONFIG,
        make: config::make,
    },
    Kind {
        name: "store",
        dictionary: include_str!("../../dictionaries/store"),
        memory_base: 1 << 20,
        memory_per_byte: PER_BYTE_OF_ROWS,
        make: store::make,
    },
    Kind {
        name: "texts",
        dictionary: include_str!("../../dictionaries/texts"),
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
