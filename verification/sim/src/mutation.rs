//! Mutations: deliberate bugs, to show that the checkers catch them.
//!
//! Shipped source contains none. A bug of `domain` or `engine` is a patch of its name in `verification/sim/mutations`;
//! `scripts/mutants` applies all of them to one copy of the source, in which they can be switched on one at a time.
//! A bug of the store's twin stands in the twin: `if mutation::is_on(Mutation::SkipFenceLock)`.

use std::cell::Cell;

/// Names every mutation once, with what is wrong in it and which promise that breaks.
macro_rules! mutations {
    ($($(#[doc = $line:literal])+ $name:ident,)+) => {
        /// A deliberate bug. What it breaks is an invariant of ARCHITECTURE.md or what a checker watches.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mutation {
            $($(#[doc = $line])+ $name,)+
        }

        impl Mutation {
            /// All of them, in the order in which they are proved.
            pub const ALL: &[Mutation] = &[$(Mutation::$name,)+];

            /// What it is called in code and on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Mutation::$name => stringify!($name),)+
                }
            }

            /// What is wrong, and what that breaks.
            pub const fn what(self) -> &'static str {
                match self {
                    $(Mutation::$name => concat!($($line),+).trim_ascii(),)+
                }
            }
        }
    };
}

mutations! {
    /// The gate reads the token from its statement's snapshot and takes no lock on the lane row before it
    /// writes. Breaks: a deposed keeper cannot write.
    SkipFenceLock,
    /// A takeover leaves the token as it was. Breaks: a deposed keeper cannot write.
    TakeoverKeepsToken,
    /// Bytes go to the nodes before the commit that stores them is answered. Breaks: durable before sent.
    SendBeforeCommit,
    /// A send does not ask whether the lease is still to be trusted. Breaks: a deposed keeper sends nothing.
    IgnoreLeaseMargin,
    /// A nonce that nothing will use is not filled. Breaks: every gap closes.
    LeaveGapUnfilled,
    /// A lane keeps the draft of a turn whose commit was not acknowledged. Breaks: memory never knows more
    /// than the store.
    AdvanceCursorBeforeAck,
    /// An unknown commit is resolved by a plain read, which may come before the commit lands. Breaks: one
    /// effect per request.
    ResolveUnknownByRead,
    /// One endpoint's rejection frees the nonce although another may have taken the bytes. Breaks: one
    /// payload per nonce.
    ReleaseNonceAfterOneRejection,
    /// Rows of a lane that was fenced out of a batch are inserted all the same. Breaks: a deposed keeper
    /// cannot write.
    InsertFencedRows,
    /// A write that touches another number of rows than it must passes, and with it a slip that only this
    /// count sees: a filler is changed that was never inserted. Breaks: every write meets its row.
    IgnoreRowCount,
    /// A node that is behind is taken for a fork. Breaks: absence is never evidence.
    TreatLagAsFork,
    /// A queued request is stored without the row that wakes its keeper. Breaks: nothing accepted is lost.
    OmitQueueRow,
    /// An attempt's bytes are sent although the row that holds its hash is written afterwards. Breaks:
    /// durable before sent.
    RegisterHashAfterSend,
    /// A STUCK tx is no longer rebroadcast. Breaks: nothing accepted is lost.
    StopRebroadcastingStuck,
    /// Several lanes are locked by waiting, in the order asked instead of one order for all. Breaks: one bad
    /// lane slows no other.
    LockWithoutOrder,
    /// A renewal waits for locked rows instead of skipping them. Breaks: one bad lane slows no other.
    RenewalWaitsForLocks,
    /// A lane's image is read from the snapshot of the takeover's own statement and misses the last batch.
    /// Breaks: memory never knows less than the store.
    LoadInTakeover,
    /// The fence compares the token and not the grant. Breaks: one effect per request, after an unknown
    /// commit or a failover that took the last commits back.
    FenceByTokenOnly,
    /// After a send whose answer was lost the tx is dealt another nonce. Breaks: one effect per request.
    ReallocateNonceAfterLostAnswer,
    /// The feed is read by an id given at insert, not in the order of commits. Breaks: no reader skips.
    ReadEventsByGlobalId,
    /// A foreign transaction that is pending at a nonce is outbid. Breaks: a foreign transaction is left
    /// alone.
    OutbidForeign,
    /// A tx whose nonce was consumed by an unidentified transaction is sent again at another nonce. Breaks: one effect
    /// per request.
    RequeueUnknownConsumer,
    /// After a bump the older hash is no longer recognised when it is mined. Breaks: one effect per request.
    IgnoreReplacedAttempts,
    /// Confirmations are counted by block numbers, not along parent links. Breaks: final means final depth.
    ConfirmByHeight,
    /// Txs that wait for their signature are dealt one nonce, and no unique index forbids it. Breaks: one
    /// payload per nonce.
    AllocateNonceTwice,
    /// A caller is told "accepted" before the commit is answered. Breaks: nothing accepted is lost.
    AnswerBeforeCommit,
    /// A key that was used for another payload is taken for a repeat. Breaks: one effect per request.
    IgnoreFingerprint,
    /// A queued request is told as accepted once more when its keeper adopts it. Breaks: every step once.
    AcceptQueuedTwice,
    /// The lane row's floor lies above txs that wait in the store. Breaks: nothing accepted is lost.
    OmitBacklogFromFloor,
    /// A result is told as final one block too early. Breaks: final means final depth.
    FinalizeOneBlockEarly,
    /// A fork that takes a final result back goes unnoticed. Breaks: what a fork takes back is reopened.
    IgnoreReorgedFinals,
    /// Confirmations that replace what was told before do not say so. Breaks: forks are always told.
    OmitNewForkFlag,
    /// A foreign transaction counts before it is final. Breaks: one effect per request.
    TrustForeignBeforeFinal,
    /// A bump offers one percent more, which no node takes. Breaks: a replacement pays more.
    BumpTooLittle,
    /// More attempts are out than the mempool depth allows. Breaks: memory and queues are bounded.
    IgnoreMempoolDepth,
    /// A turn waits for a remote signer, and so do all lanes of its shard. Breaks: one bad lane slows no other.
    WaitForSignerInTurn,
    /// A tx is STUCK as soon as it is sent again, whatever the rules say. Breaks: STUCK only by a rule.
    StuckWithoutRule,
    /// An expired reservation frees its nonce without a chain check. Breaks: no nonce is reissued while a
    /// transaction with it may be mined.
    ReleaseExpiredWithoutChainCheck,
    /// A former holder's mark counts for a nonce that was reissued. Breaks: a nonce has one holder.
    AcceptFormerHolder,
    /// A lane's envelopes are sent with the highest nonce first. Breaks: sends are in nonce order.
    SendHighestNonceFirst,
    /// A tx whose block was reorged out keeps its list of confirmations. Breaks: confirmations are linked.
    KeepConfirmationsAfterReorg,
    /// The lane row's cost of open txs lacks those that wait in the store. Breaks: a request is accepted only if the
    /// account can pay for it.
    ForgetCostOfWaitingTxs,
    /// A request is compared with the whole balance, whatever open txs can cost. Breaks: a request is accepted only if the
    /// account can pay for it.
    IgnoreOpenCost,
    /// A configured cap of fees does not limit what is quoted. Breaks: nothing overpays.
    IgnoreFeeCap,
    /// A repeated request is a conflict like any other: its lane is read again. Breaks: a lane stays open.
    RepeatClosesLane,
    /// A payload that every node rejects for good keeps its nonce. Breaks: no lane is wedged.
    KeepRejectedPayload,
    /// The reads of customers take the connections of the engine. Breaks: one bad reader slows no other.
    ReadersShareConnections,
}

/// Whether this build contains the bugs in `domain` and `engine`: the patches change it in their copy.
pub const IS_PATCHED: bool = false;

thread_local! {
    static ON: Cell<Option<Mutation>> = const { Cell::new(None) };
}

/// Whether this bug is on in the world of this thread (a simulated world lives on one).
pub fn is_on(mutation: Mutation) -> bool {
    ON.get() == Some(mutation)
}

/// Runs something with one bug in it, on this thread.
pub fn with<R>(mutation: Mutation, run: impl FnOnce() -> R) -> R {
    let _before = Restore(switch(Some(mutation)));
    run()
}

/// Returns what was on before.
fn switch(on: Option<Mutation>) -> Option<Mutation> {
    ON.replace(on)
}

/// Puts back what was on before, also when the run panics: a bug may well do that.
struct Restore(Option<Mutation>);

impl Drop for Restore {
    fn drop(&mut self) {
        switch(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutation_says_what_it_breaks() {
        for mutation in Mutation::ALL {
            let what = mutation.what();
            assert!(what.contains("Breaks: "), "{}: {what}", mutation.name());
        }
    }

    #[test]
    fn every_patch_is_a_mutation_of_the_list() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/mutations");
        let files = std::fs::read_dir(folder).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let patches = names.filter_map(|name| name.strip_suffix(".patch").map(str::to_owned));
        for patch in patches.filter(|patch| patch != "switch") {
            assert!(
                Mutation::ALL
                    .iter()
                    .any(|mutation| mutation.name() == patch),
                "no mutation has the name of {patch}.patch"
            );
        }
    }

    #[test]
    fn is_on_only_while_it_runs_and_only_here() {
        let (one, other) = (Mutation::SkipFenceLock, Mutation::LeaveGapUnfilled);
        with(one, || {
            assert!(is_on(one) && !is_on(other));
            let elsewhere = std::thread::spawn(move || is_on(one)).join().unwrap();
            assert!(!elsewhere, "another world is not touched");
            std::panic::catch_unwind(|| with(other, || panic!("as a bug may"))).unwrap_err();
            assert!(is_on(one) && !is_on(other), "a panic leaves no bug behind");
        });
        assert!(!is_on(one));
    }
}
