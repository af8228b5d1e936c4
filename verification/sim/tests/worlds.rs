//! Whole worlds: the same seed makes the same world, and no world breaks a promise.

use sim::command::regressions;
use sim::world::{Changes, FEATURES, Feature, FeatureSet, Options, WorldOutcome, plan, run};

fn stormy() -> Options {
    Options::default()
}

fn deep() -> Options {
    Options {
        deep_forks: true,
        ..stormy()
    }
}

fn lossy() -> Options {
    Options {
        lossy: true,
        ..stormy()
    }
}

fn calm() -> Options {
    Options {
        calm: true,
        ..stormy()
    }
}

fn keeps_every_promise(seed: u64, options: Options) {
    let WorldOutcome { violations, .. } = run(seed, options);
    assert_eq!(violations, [] as [String; 0], "seed {seed} {options}");
}

#[test]
fn same_seed_makes_the_same_trace() {
    let kinds = (1..=20).map(|seed| (seed, stormy()));
    let mixed = (21..=40).map(|seed| (seed, Options::mixed(seed)));
    for (seed, options) in kinds.chain(mixed) {
        let (first, second) = (run(seed, options), run(seed, options));
        let differs = first
            .lines
            .iter()
            .zip(&second.lines)
            .find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed} {options}");
        assert_eq!(
            (first.hash, first.lines.len()),
            (second.hash, second.lines.len())
        );
        assert!(first.lines.len() > 50, "seed {seed}: something happened");
        // A search records no lines; that must not change the run.
        let silent = Options {
            silent: true,
            ..options
        };
        let silent = run(seed, silent);
        assert_eq!(
            (silent.events, silent.duration),
            (first.events, first.duration),
            "seed {seed} {options}"
        );
    }
    assert_ne!(run(1, stormy()).hash, run(2, stormy()).hash);
}

#[test]
fn calm_worlds_keep_every_promise() {
    (1..=20).for_each(|seed| keeps_every_promise(seed, calm()));
}

#[test]
fn stormy_worlds_keep_every_promise() {
    (1_000..1_040).for_each(|seed| keeps_every_promise(seed, stormy()));
}

#[test]
fn mixed_worlds_keep_every_promise() {
    (4_000..4_100).for_each(|seed| keeps_every_promise(seed, Options::mixed(seed)));
}

#[test]
fn finals_reorged_out_by_deep_forks_are_executed_again() {
    // The first six once left a tx CONFIRMED without its effect and its lane stalled: a lane that was
    // loaded again did not watch its finals any more.
    let seeds = [38, 40, 77, 81, 110, 144].into_iter().chain(2_000..2_010);
    seeds.for_each(|seed| keeps_every_promise(seed, deep()));
}

#[test]
fn lanes_that_lost_commits_execute_nothing_twice() {
    // The first once executed a request twice that was queued before the standby stopped replicating: its
    // keeper had dropped its memory when the store did not answer, and a gap hid it on the chain. The others
    // once treated a lost attempt of their own as a foreign transaction.
    let seeds = [7_226, 3_045, 3_163, 3_181].into_iter().chain(3_000..3_020);
    seeds.for_each(|seed| keeps_every_promise(seed, lossy()));
}

#[test]
fn recorded_regressions_keep_every_promise() {
    for old in regressions() {
        keeps_every_promise(old.seed, old.options);
    }
}

#[test]
fn every_workload_happens() {
    let features = [
        Feature::Readers,
        Feature::Restarts,
        Feature::Newcomers,
        Feature::Departures,
        Feature::NodeClocks,
        Feature::PoisonedRequests,
        Feature::HungMethods,
        Feature::FalseFees,
        Feature::FeeLimits,
        Feature::RepeatFloods,
        Feature::RevertFloods,
        Feature::ReaderFloods,
        Feature::LateReleases,
    ];
    for feature in features {
        let busy = (1..).map(|seed| (seed, Options::mixed(seed)));
        let mut busy = busy.filter(|(seed, options)| plan(*seed, *options).has_workload(feature));
        let mut few = busy.by_ref().take(5);
        let happened = few.any(|(seed, options)| run(seed, options).fired.contains(feature));
        assert!(happened, "{feature:?}");
    }
}

#[test]
fn world_with_everything_disabled_keeps_every_promise() {
    let without: FeatureSet = FEATURES.iter().map(|(feature, _)| *feature).collect();
    let changes = Changes {
        without,
        requests: Some(3),
        nodes: Some(1),
        lanes: Some(1),
        faults: Some(0),
    };
    for seed in 1..=10 {
        let options = Options::mixed(seed).with(changes);
        keeps_every_promise(seed, options);
        let lines = run(seed, options).lines;
        assert!(!lines.iter().any(|line| line.contains("fork drops")));
    }
}
