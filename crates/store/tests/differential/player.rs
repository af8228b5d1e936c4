//! Where a store runs: in the worker's own thread, or, when it uses simulated time, in a thread in
//! which time stands still. (The worker's cannot: PostgreSQL answers in real time.)

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::answers::Answer;
use crate::contents;
use crate::operation::Operation;
use crate::side::Side;
use crate::subjects::Subject;

/// One of the stores under comparison.
pub(crate) struct Player {
    pub(crate) name: &'static str,
    pub(crate) feeds_in_gate: bool,
    place: Place,
}

enum Place {
    Here(Box<Side>),
    Apart {
        /// Ends the thread when it is dropped.
        commands: Sender<Command>,
        answers: Receiver<(Answer, Duration)>,
        spent: Duration,
    },
}

enum Command {
    Clear,
    Answer(Box<Operation>),
    /// The whole feed; whether its order counts.
    Feed(bool),
}

impl Player {
    pub(crate) fn in_this_thread(subject: Box<dyn Subject>) -> Self {
        Self {
            name: subject.name(),
            feeds_in_gate: subject.feeds_in_gate(),
            place: Place::Here(Box::new(Side::new(subject))),
        }
    }

    /// A subject in a runtime with paused time.
    pub(crate) fn in_own_thread(subject: Box<dyn Subject>) -> Self {
        let (commands, inbox) = channel();
        let (outbox, answers) = channel();
        let (name, feeds_in_gate) = (subject.name(), subject.feeds_in_gate());
        std::thread::spawn(move || run(Side::new(subject), &inbox, &outbox));
        Self {
            name,
            feeds_in_gate,
            place: Place::Apart {
                commands,
                answers,
                spent: Duration::ZERO,
            },
        }
    }

    /// How long all its answers took.
    pub(crate) fn spent(&self) -> Duration {
        match &self.place {
            Place::Here(side) => side.spent,
            Place::Apart { spent, .. } => *spent,
        }
    }

    pub(crate) async fn clear(&mut self) {
        self.obey(Command::Clear).await;
    }

    pub(crate) async fn answer(&mut self, operation: &Operation) -> Answer {
        match &mut self.place {
            // Without a copy of the question.
            Place::Here(side) => side.answer(operation).await,
            Place::Apart { .. } => {
                self.obey(Command::Answer(Box::new(operation.clone())))
                    .await
            }
        }
    }

    /// All that the feed holds.
    pub(crate) async fn feed(&mut self, is_ordered: bool) -> Answer {
        self.obey(Command::Feed(is_ordered)).await
    }

    async fn obey(&mut self, command: Command) -> Answer {
        match &mut self.place {
            Place::Here(side) => obey(side, command).await,
            Place::Apart {
                commands,
                answers,
                spent,
            } => {
                let answer = match commands.send(command) {
                    Ok(()) => answers.recv().ok(),
                    Err(_its_thread_is_gone) => None,
                };
                // The panic message was printed.
                let (answer, all) = answer.expect("its thread panicked");
                *spent = all;
                answer
            }
        }
    }
}

fn run(mut side: Side, inbox: &Receiver<Command>, outbox: &Sender<(Answer, Duration)>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    while let Ok(command) = inbox.recv() {
        let answer = runtime.block_on(obey(&mut side, command));
        if outbox.send((answer, side.spent)).is_err() {
            return;
        }
    }
}

async fn obey(side: &mut Side, command: Command) -> Answer {
    match command {
        Command::Clear => {
            side.clear().await;
            Answer::Done
        }
        Command::Answer(operation) => side.answer(&operation).await,
        Command::Feed(is_ordered) => contents::feed(side, is_ordered).await,
    }
}
