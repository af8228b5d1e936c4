//! The code map of ARCHITECTURE.md: which crate may depend on which, and which dependencies are banned.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every allowed dependency. Adapters never depend on each other; only the binary depends on all.
const ARROWS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("engine", &["domain"]),
    // The one PostgreSQL client. It uses nothing else of the product.
    ("postgres-client", &[]),
    ("store", &["domain", "engine", "postgres-client"]),
    ("chain", &["domain", "engine"]),
    ("api-types", &["domain", "engine"]),
    ("sinks", &["api-types", "domain", "engine"]),
    ("nonce", &["domain", "engine", "postgres-client"]),
    ("api", &["api-types", "browser-guard", "domain", "engine"]),
    ("sim", &["domain", "engine"]),
    // The contract suite of the Store port, which every backend runs in its tests.
    ("store-contract", &["domain", "engine"]),
    (
        "lanekeeper",
        &[
            "api",
            "bench",
            "browser-guard",
            "chain",
            "cli",
            "devchain",
            "domain",
            "engine",
            "nonce",
            "sinks",
            "store",
        ],
    ),
    // The client commands, and what all commands share. It knows the names of states, and no adapter.
    ("cli", &["domain"]),
    // The benchmarks behind `lanekeeper bench`.
    (
        "bench",
        &[
            "api", "chain", "cli", "devchain", "domain", "engine", "nonce", "store",
        ],
    ),
    // What browsers may send to a server on a private network.
    ("browser-guard", &[]),
    // An EVM node for development and tests. Of the product it uses only that guard.
    ("devchain", &["browser-guard"]),
    // Real servers for tests. It uses nothing of the product.
    ("rig", &[]),
    // Counts memory and branches for the fuzzer, which calls every parser of untrusted bytes.
    ("probe", &[]),
    ("tidy", &[]),
    (
        "fuzz",
        &[
            "api",
            "api-types",
            "chain",
            "domain",
            "engine",
            "lanekeeper",
            "probe",
            "sim",
            "store",
        ],
    ),
    // Proofs run the real binary and use none of its crates.
    ("proof", &["rig"]),
    // Applications that use the nonce component as a library: an example, and one that proofs can kill.
    ("payouts", &["chain", "domain", "engine", "nonce"]),
    ("holder", &["chain", "domain", "engine", "nonce", "proof"]),
];

/// The crates whose tests may use the simulator.
const TESTED_WITH_SIM: &[&str] = &["api", "chain", "engine", "nonce", "sinks", "store"];

/// The crates whose tests run the contract suite of the Store port.
const TESTED_WITH_STORE_CONTRACT: &[&str] = &["sim", "store"];

/// All dependencies of the rules: no runtime, no IO, no clock, no serialization.
const DOMAIN_DEPENDENCIES: &[&str] = &["alloy-primitives", "strum", "thiserror", "uuid"];

/// Banned dependencies: there is one TLS library, with one provider, and no system library.
const BANNED: &[&str] = &[
    "aws-lc-rs",
    "aws-lc-sys",
    "native-tls",
    "openssl",
    "openssl-sys",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[derive(serde::Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(serde::Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(serde::Deserialize)]
struct Dependency {
    name: String,
    /// `None` is a normal dependency.
    kind: Option<String>,
    /// Set for crates of this workspace.
    path: Option<String>,
}

/// The packages of the workspace.
fn packages() -> Vec<Package> {
    let arguments = [
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ];
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(root())
        .output();
    let output = output.expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Metadata = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    metadata.packages
}

#[test]
fn every_dependency_is_allowed() {
    let map: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let mut strays = Vec::new();
    for Package {
        name: from,
        dependencies,
        ..
    } in packages()
    {
        let Some(allowed) = map.get(from.as_str()) else {
            strays.push(format!(
                "{from} is missing in ARROWS and in the code map of ARCHITECTURE.md"
            ));
            continue;
        };
        for Dependency { name: to, kind, .. } in dependencies.iter().filter(|d| d.path.is_some()) {
            let is_test = kind.as_deref() == Some("dev");
            let with_sim = is_test && to == "sim" && TESTED_WITH_SIM.contains(&from.as_str());
            let with_contract = is_test
                && to == "store-contract"
                && TESTED_WITH_STORE_CONTRACT.contains(&from.as_str());
            let with_rig = is_test && to == "rig"; // every crate may test with real servers
            let with_store = is_test && to == "store" && from == "nonce"; // scheme `lane` on PostgreSQL
            let with_devchain = is_test && to == "devchain" && from == "chain"; // a node for its client
            if !with_store
                && !with_devchain
                && !with_sim
                && !with_contract
                && !with_rig
                && !allowed.contains(&to.as_str())
            {
                strays.push(format!(
                    "{from} → {to} ({})",
                    kind.as_deref().unwrap_or("normal")
                ));
            }
        }
    }
    assert!(
        strays.is_empty(),
        "dependencies that ARROWS does not allow: {strays:#?}"
    );
}

#[test]
fn domain_depends_on_no_runtime_and_no_io() {
    let packages = packages();
    let domain = packages
        .iter()
        .find(|package| package.name == "domain")
        .unwrap();
    for dependency in domain.dependencies.iter().filter(|d| d.kind.is_none()) {
        let name = &dependency.name;
        assert!(
            DOMAIN_DEPENDENCIES.contains(&name.as_str()),
            "domain must not depend on {name}"
        );
    }
}

#[test]
fn no_banned_dependency_is_locked() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    for name in BANNED {
        let line = format!("name = \"{name}\"");
        assert!(!lock.lines().any(|l| l == line), "{name} is in Cargo.lock");
    }
}
