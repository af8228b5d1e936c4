//! The map of ARCHITECTURE.md: which room may know which, and what no room may bring in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every arrow that exists. Adapters never see each other; only the binary sees all.
const ARROWS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("engine", &["domain"]),
    ("store", &["domain", "engine"]),
    ("chain", &["domain", "engine"]),
    ("sinks", &["domain", "engine"]),
    ("nonce", &["domain", "engine"]),
    ("api", &["domain", "engine"]),
    ("sim", &["domain", "engine"]),
    (
        "lanekeeper",
        &[
            "api", "chain", "domain", "engine", "nonce", "sinks", "store",
        ],
    ),
    // Real servers to test with; it knows none of the rooms.
    ("rig", &[]),
    // Counts memory and branches for the fuzzer, which sees everything that takes bytes. Neither is shipped.
    ("probe", &[]),
    (
        "fuzz",
        &[
            "api",
            "chain",
            "domain",
            "engine",
            "lanekeeper",
            "probe",
            "sim",
            "store",
        ],
    ),
    // Proofs drive the real binary from outside and know none of its rooms.
    ("proof", &["rig"]),
    // Businesses that use the nonce component as a library: an example, and one that proofs can kill.
    ("payouts", &["chain", "domain", "engine", "nonce"]),
    ("borrower", &["chain", "domain", "engine", "nonce", "proof"]),
];

/// Who may use the test world, in tests.
const TESTED_WITH_SIM: &[&str] = &["api", "chain", "nonce", "sinks", "store"];

/// All that the rules may lean on: no runtime, no IO, no clock. (serde only marks what may be carried to
/// another node; a format is an adapter's business.)
const DOMAIN_LEANS_ON: &[&str] = &["alloy-primitives", "serde", "thiserror", "uuid"];

/// The feature that lets deliberate bugs in, and the rooms that may have it: rules, engine, and the test world
/// that switches them on. Nobody passes it to a dependency by default.
const MUTATIONS: &str = "mutations";
const WITH_MUTATIONS: &[&str] = &["domain", "engine", "sim"];

/// What must not be compiled in: one TLS, one provider, no system library.
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
    features: BTreeMap<String, Vec<String>>,
}

#[derive(serde::Deserialize)]
struct Dependency {
    name: String,
    /// `None` is a normal one.
    kind: Option<String>,
    /// Where it is, when it is one of ours.
    path: Option<String>,
    /// The features of it that are switched on.
    features: Vec<String>,
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
    let metadata: Metadata = serde_json::from_slice(&output.stdout).expect("cargo speaks JSON");
    metadata.packages
}

#[test]
fn every_arrow_is_on_the_map() {
    let map: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let mut strays = Vec::new();
    for Package {
        name: from,
        dependencies,
        ..
    } in packages()
    {
        let Some(allowed) = map.get(from.as_str()) else {
            strays.push(format!("{from} is not a room of ARCHITECTURE.md"));
            continue;
        };
        for Dependency { name: to, kind, .. } in dependencies.iter().filter(|d| d.path.is_some()) {
            let is_test = kind.as_deref() == Some("dev");
            let with_sim = is_test && to == "sim" && TESTED_WITH_SIM.contains(&from.as_str());
            let with_rig = is_test && to == "rig"; // any room may test with real servers
            if !with_sim && !with_rig && !allowed.contains(&to.as_str()) {
                strays.push(format!(
                    "{from} → {to} ({})",
                    kind.as_deref().unwrap_or("normal")
                ));
            }
        }
    }
    assert!(
        strays.is_empty(),
        "arrows that are not on the map: {strays:#?}"
    );
}

#[test]
fn rules_know_no_runtime_and_no_io() {
    let packages = packages();
    let domain = packages
        .iter()
        .find(|package| package.name == "domain")
        .unwrap();
    for dependency in domain.dependencies.iter().filter(|d| d.kind.is_none()) {
        let name = &dependency.name;
        assert!(
            DOMAIN_LEANS_ON.contains(&name.as_str()),
            "domain leans on {name}"
        );
    }
}

#[test]
fn no_program_can_be_shipped_with_deliberate_bugs() {
    let mut strays = Vec::new();
    for package in packages() {
        let name = &package.name;
        let mentions = |text: &String| text.split('/').any(|word| word == MUTATIONS);
        for dependency in &package.dependencies {
            if dependency.features.iter().any(mentions) {
                strays.push(format!("{name} switches them on in {}", dependency.name));
            }
        }
        for (feature, switches_on) in &package.features {
            let is_it = feature == MUTATIONS;
            if is_it && !WITH_MUTATIONS.contains(&name.as_str()) {
                strays.push(format!("{name} has the feature"));
            }
            if !is_it && switches_on.iter().any(mentions) {
                strays.push(format!("feature {feature} of {name} switches them on"));
            }
        }
    }
    assert!(strays.is_empty(), "{strays:#?}");
}

#[test]
fn nothing_banned_is_locked() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    for name in BANNED {
        let line = format!("name = \"{name}\"");
        assert!(!lock.lines().any(|l| l == line), "{name} is in Cargo.lock");
    }
}
