//! The program. Everything is in the library beside it, so that it can be tested and fuzzed without a process.

fn main() -> std::process::ExitCode {
    lanekeeper::main()
}
