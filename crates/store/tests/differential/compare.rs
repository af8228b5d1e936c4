//! One sequence on all stores: every answer, then the contents, must be the same.

use engine::ports::CommitOutcome;

use crate::answers::Answer;
use crate::contents;
use crate::described;
use crate::draw::Sequence;
use crate::model::Model;
use crate::operation::{Incident, Operation, ReadCall, Write};
use crate::player::Player;
use crate::rules;

/// Stores that did not agree.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    /// Which step; behind the last one: the contents at the end.
    pub(crate) step: usize,
    /// Of each store.
    pub(crate) answers: Vec<(&'static str, String)>,
    /// All operations up to there.
    pub(crate) operations: Vec<String>,
}

/// Totals.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sequences: u64,
    pub(crate) operations: u64,
    /// Commits that were applied: a test that is only ever refused shows nothing.
    pub(crate) applied: u64,
    pub(crate) refused: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.sequences += other.sequences;
        self.operations += other.operations;
        self.applied += other.applied;
        self.refused += other.refused;
    }
}

/// A sequence that is being run.
struct Run<'a> {
    sequence: &'a Sequence,
    players: Vec<&'a mut Player>,
    model: Model,
    tally: Tally,
    operations: Vec<String>,
    /// Whether `operations` is recorded: that costs more than the operations.
    is_recorded: bool,
}

/// Runs a sequence on stores that it empties first. `is_recorded`: keeps the operations.
pub(crate) async fn run(
    sequence: &Sequence,
    players: &mut [Player],
    is_recorded: bool,
) -> Result<Tally, Box<Difference>> {
    let players: Vec<&mut Player> = players.iter_mut().collect();
    let mut run = Run {
        sequence,
        players,
        model: Model::new(),
        tally: Tally {
            sequences: 1,
            ..Tally::default()
        },
        operations: Vec::new(),
        is_recorded,
    };
    for player in &mut run.players {
        player.clear().await;
    }
    for (n, step) in sequence.steps.iter().enumerate() {
        let operation = step.operation(&mut run.model);
        run.take(n, &operation).await?;
    }
    run.compare_contents(sequence.steps.len()).await?;
    Ok(run.tally)
}

impl Run<'_> {
    async fn take(&mut self, step: usize, operation: &Operation) -> Result<(), Box<Difference>> {
        let answer = self.lease_request(step, operation).await?;
        self.model.follow(operation, &answer);
        let (Operation::Write(Write::Commit(batches)), Answer::Outcomes(outcomes)) =
            (operation, &answer)
        else {
            return Ok(());
        };
        for (batch, outcome) in batches.iter().zip(outcomes) {
            if *outcome != CommitOutcome::Applied {
                self.tally.refused += 1;
                continue;
            }
            self.tally.applied += 1;
            if self.sequence.is_fed_at_once {
                self.lease_request(step, &contents::feed_at_once(batch.lease_grant.lane))
                    .await?;
            }
        }
        Ok(())
    }

    /// Asks every store; the authority's answer, when all agree.
    async fn lease_request(
        &mut self,
        step: usize,
        operation: &Operation,
    ) -> Result<Answer, Box<Difference>> {
        self.tally.operations += 1;
        if self.is_recorded {
            self.operations
                .push(format!("{step}: {}", described::operation(operation)));
        }
        let is_behind = !self.sequence.is_fed_at_once;
        let mut answers: Vec<(&'static str, Answer)> = Vec::with_capacity(self.players.len());
        for player in &mut self.players {
            if is_behind && reads_feed(operation) && player.feeds_in_gate {
                continue;
            }
            let answer = player.answer(operation).await;
            answers.push((player.name, answer));
        }
        let agree = match operation {
            Operation::Write(Write::Commit(_) | Write::Queue(_)) => {
                answers
                    .iter()
                    .all(|(_, answer)| self.is_right(operation, answer))
                    && answers
                        .windows(2)
                        .all(|pair| is_same_effect(&pair[0].1, &pair[1].1))
            }
            Operation::Write(_)
            | Operation::LeaseCall(_)
            | Operation::Load(_)
            | Operation::ReadCall(_)
            | Operation::Incident(Incident::Advance(_) | Incident::Promote) => {
                let is_available = |(_, answer): &(_, Answer)| !is_unavailable(answer);
                answers.iter().all(is_available)
                    && answers.windows(2).all(|pair| pair[0].1 == pair[1].1)
            }
        };
        if !agree {
            return Err(self.differ(step, answers));
        }
        let (_, authoritys) = answers.pop().expect("PostgreSQL is the last of them");
        Ok(authoritys)
    }

    /// Whether a write was answered according to the rules.
    fn is_right(&self, operation: &Operation, answer: &Answer) -> bool {
        match (operation, answer) {
            (Operation::Write(Write::Commit(batches)), Answer::Outcomes(outcomes)) => {
                let mut model = self.model.clone();
                batches.len() == outcomes.len()
                    && batches.iter().zip(outcomes).all(|(batch, outcome)| {
                        let is_allowed = rules::outcomes(&model, batch).contains(outcome);
                        if *outcome == CommitOutcome::Applied && is_allowed {
                            model.lanes[crate::model::place(batch.lease_grant)].apply(batch);
                        }
                        is_allowed
                    })
            }
            (Operation::Write(Write::Queue(requests)), Answer::Refused(error)) => {
                rules::queue_refusals(&self.model, requests).contains(error)
            }
            (Operation::Write(Write::Queue(requests)), _) => {
                rules::queue_refusals(&self.model, requests).is_empty()
            }
            // No answer to such a question.
            (_, _) => false,
        }
    }

    async fn compare_contents(&mut self, step: usize) -> Result<(), Box<Difference>> {
        for question in contents::questions(&self.model) {
            self.lease_request(step, &question).await?;
        }
        let mut answers = Vec::new();
        for player in &mut self.players {
            let feed = player.feed(self.sequence.is_fed_at_once).await;
            answers.push((player.name, feed));
        }
        let is_whole = |(_, feed): &(_, Answer)| !contents::has_gaps(&self.model, feed);
        if answers.iter().all(is_whole) && answers.windows(2).all(|pair| pair[0].1 == pair[1].1) {
            return Ok(());
        }
        if self.is_recorded {
            self.operations.push("the feed, all of it".to_owned());
        }
        Err(self.differ(step, answers))
    }

    fn differ(&self, step: usize, answers: Vec<(&'static str, Answer)>) -> Box<Difference> {
        let text = |(name, answer)| (name, format!("{answer:#?}"));
        Box::new(Difference {
            step,
            answers: answers.into_iter().map(text).collect(),
            operations: self.operations.clone(),
        })
    }
}

fn reads_feed(operation: &Operation) -> bool {
    matches!(operation, Operation::ReadCall(ReadCall::Events(..)))
}

/// Nothing is unavailable here: such an answer would hide what it should have been.
fn is_unavailable(answer: &Answer) -> bool {
    let unavailable = |error: &engine::ports::StoreError| {
        matches!(error, engine::ports::StoreError::Unavailable(_))
    };
    matches!(answer, Answer::Refused(error) if unavailable(error))
}

/// Whether two answers to a write mean that the same was written. (For which of several faults the rest was
/// refused is everybody's own choice.)
fn is_same_effect(some: &Answer, other: &Answer) -> bool {
    match (some, other) {
        (Answer::Outcomes(some), Answer::Outcomes(other)) => {
            let applied = |outcome: &CommitOutcome| *outcome == CommitOutcome::Applied;
            some.iter().map(applied).eq(other.iter().map(applied))
        }
        (Answer::Refused(_), Answer::Refused(_)) => true,
        (_, _) => some == other,
    }
}
