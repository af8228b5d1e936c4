//! The program. Its code is in the library of this crate, so that tests and the fuzzer can call it in process.

fn main() -> std::process::ExitCode {
    lanekeeper::main()
}
