//! A group of tasks that run, pause and end together. One node is one group.
//!
//! Production uses it for a clean stop, and so that no node runs on without one of its parts: a
//! panic in one task ends them all. The simulator uses it to kill or freeze a whole node at any
//! await.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

/// The group. Cheap to clone: all clones are the same group.
#[derive(Clone, Default)]
pub struct Tasks {
    group: Arc<Group>,
}

impl Tasks {
    /// An empty group, running.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs a task in the group. It ends when it returns, or when the group is killed.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let Some(id) = self.group.add_task() else {
            return;
        };
        // The handle is dropped: the group itself knows when the task ends, and how.
        drop(tokio::spawn(GroupTask {
            group: Arc::clone(&self.group),
            id,
            name,
            task: Some(Box::pin(task)),
        }));
    }

    /// Ends every task at the await where it stands, like `kill -9`: nothing after it runs. A task
    /// that is being polled at this moment (on another thread, or the caller itself) still gets to
    /// its next await. Idempotent; what is spawned later never runs.
    pub fn kill(&self) {
        self.group.kill();
    }

    /// Freezes the group, like `SIGSTOP`: no task is polled until [`Tasks::resume`]. Wakes are
    /// remembered.
    pub fn pause(&self) {
        let mut state = self.group.lock();
        if state.phase == Phase::Running {
            state.phase = Phase::Paused;
        }
    }

    /// Continues after [`Tasks::pause`].
    pub fn resume(&self) {
        let mut state = self.group.lock();
        if state.phase != Phase::Paused {
            return;
        }
        state.phase = Phase::Running;
        let tasks = state.tasks.values_mut();
        let missed = tasks.filter_map(|entry| match std::mem::take(&mut entry.missed) {
            true => entry.waker.clone(),
            false => None,
        });
        let missed: Vec<Waker> = missed.collect();
        drop(state);
        missed.iter().for_each(Waker::wake_by_ref);
    }

    /// How many tasks run in the group.
    #[must_use]
    pub fn count(&self) -> usize {
        self.group.lock().tasks.len()
    }

    /// How many polls the tasks of the group have had so far.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.group.lock().polls
    }

    /// Kills the group right before its `n`-th poll (at the next one when that is over): a crash at
    /// any await, named by a number.
    pub fn kill_at_poll(&self, n: u64) {
        self.group.lock().kill_at_poll = Some(n);
    }

    /// Whether the group was killed.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.group.lock().phase == Phase::Dead
    }

    /// The first panic of a task, with the task's name. It has killed the group.
    #[must_use]
    pub fn panicked(&self) -> Option<String> {
        self.group.lock().panicked.clone()
    }

    /// Resolves when every task has returned or was dropped. (A task of the group that awaits this
    /// waits for itself.)
    pub async fn ended(&self) {
        loop {
            let mut left = std::pin::pin!(self.group.left.notified());
            // Registered before the check, so that a task that ends in between is not missed.
            left.as_mut().enable();
            if self.group.lock().tasks.is_empty() {
                return;
            }
            left.await;
        }
    }
}

#[derive(Default)]
struct Group {
    state: Mutex<State>,
    /// Notified when the last task ends.
    left: Notify,
}

#[derive(Default)]
struct State {
    phase: Phase,
    polls: u64,
    kill_at_poll: Option<u64>,
    last_id: u64,
    /// Ordered by id, so that wakeups go out in the order of spawning.
    tasks: BTreeMap<u64, TaskEntry>,
    panicked: Option<String>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Running,
    Paused,
    Dead,
}

/// The group's record of one of its tasks.
#[derive(Default)]
struct TaskEntry {
    /// `None` before its first poll, which comes by itself.
    waker: Option<Waker>,
    /// It was woken while the group was frozen.
    missed: bool,
}

impl Group {
    /// Ignores poison: nothing panics while the lock is held.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Adds a task; `None` when the group is dead.
    fn add_task(&self) -> Option<u64> {
        let mut state = self.lock();
        if state.phase == Phase::Dead {
            return None;
        }
        state.last_id += 1;
        let id = state.last_id;
        state.tasks.insert(id, TaskEntry::default());
        Some(id)
    }

    /// Asks for permission to poll. Anything but `Running` means: not now, or never again.
    fn begin_poll(&self, id: u64, waker: &Waker) -> Phase {
        let mut state = self.lock();
        if state.phase == Phase::Running
            && state
                .kill_at_poll
                .is_some_and(|n| state.polls.saturating_add(1) >= n)
        {
            drop(state);
            self.kill();
            return Phase::Dead;
        }
        let phase = state.phase;
        if phase == Phase::Running {
            state.polls += 1;
        }
        if let Some(entry) = state.tasks.get_mut(&id) {
            entry.missed = phase == Phase::Paused;
            match &mut entry.waker {
                Some(known) => known.clone_from(waker),
                None => entry.waker = Some(waker.clone()),
            }
        }
        phase
    }

    fn remove_task(&self, id: u64) {
        let mut state = self.lock();
        state.tasks.remove(&id);
        let is_last = state.tasks.is_empty();
        drop(state);
        if is_last {
            self.left.notify_waiters();
        }
    }

    fn kill(&self) {
        let mut state = self.lock();
        if state.phase == Phase::Dead {
            return;
        }
        state.phase = Phase::Dead;
        let wakers: Vec<Waker> = state
            .tasks
            .values_mut()
            .filter_map(|entry| entry.waker.take())
            .collect();
        // Waking may run code of a scheduler: not under the lock.
        drop(state);
        wakers.iter().for_each(Waker::wake_by_ref);
    }

    fn report_panic(&self, name: &'static str, cause: &(dyn Any + Send)) {
        let message = cause.downcast_ref::<&'static str>().copied();
        let message = message.or_else(|| cause.downcast_ref::<String>().map(String::as_str));
        let message = message.unwrap_or("(no message)");
        tracing::error!(task = name, %message, "a task panicked: the node ends");
        self.lock()
            .panicked
            .get_or_insert_with(|| format!("{name}: {message}"));
        self.kill();
    }
}

/// One task of the group: it asks the group before every poll.
struct GroupTask {
    group: Arc<Group>,
    id: u64,
    name: &'static str,
    /// `None` once it is over.
    task: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Future for GroupTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.group.begin_poll(self.id, context.waker()) {
            Phase::Running => {}
            Phase::Paused => return Poll::Pending,
            Phase::Dead => {
                self.task = None;
                return Poll::Ready(());
            }
        }
        let Some(task) = &mut self.task else {
            return Poll::Ready(());
        };
        // A task that panicked is dropped at once and never polled again, so nothing sees what it
        // left half done.
        match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(context))) {
            Ok(Poll::Ready(())) => {}
            // Killed from within this very poll: its wake may already have been spent.
            Ok(Poll::Pending) if self.group.lock().phase == Phase::Dead => {}
            Ok(Poll::Pending) => return Poll::Pending,
            Err(cause) => self.group.report_panic(self.name, &*cause),
        }
        self.task = None;
        Poll::Ready(())
    }
}

impl Drop for GroupTask {
    /// Also on a runtime's shutdown. First the task is dropped, then its entry: after the end of the group
    /// everything that the tasks held is dropped.
    fn drop(&mut self) {
        self.task = None;
        self.group.remove_task(self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    /// A counter that its holder raises when it is dropped.
    struct OnDrop(Arc<AtomicU64>);

    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Spawns a task that counts its turns until it is killed.
    fn spawn_counter(tasks: &Tasks, turns: &Arc<AtomicU64>) {
        let turns = Arc::clone(turns);
        tasks.spawn("counter", async move {
            loop {
                turns.fetch_add(1, Ordering::SeqCst);
                after(10).await;
            }
        });
    }

    async fn after(millis: u64) {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn kill_drops_every_task_at_its_await() {
        let tasks = Tasks::new();
        let (turns, drops) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        spawn_counter(&tasks, &turns);
        let held = OnDrop(Arc::clone(&drops));
        tasks.spawn("waiter", async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        after(25).await;
        assert_eq!(turns.load(Ordering::SeqCst), 3);
        tasks.kill();
        tasks.kill();
        tasks.ended().await;
        assert!(tasks.is_dead());
        assert_eq!(
            drops.load(Ordering::SeqCst),
            1,
            "what a task holds is dropped"
        );
        after(100).await;
        assert_eq!(turns.load(Ordering::SeqCst), 3);
        spawn_counter(&tasks, &turns);
        after(100).await;
        assert_eq!(
            turns.load(Ordering::SeqCst),
            3,
            "a dead group runs nothing more"
        );
        assert_eq!(tasks.panicked(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn task_that_kills_its_group_runs_to_its_next_await_only() {
        let tasks = Tasks::new();
        let (own, turns) = (tasks.clone(), Arc::new(AtomicU64::new(0)));
        let counted = Arc::clone(&turns);
        tasks.spawn("killer", async move {
            own.kill();
            counted.fetch_add(1, Ordering::SeqCst);
            after(1).await;
            counted.fetch_add(1, Ordering::SeqCst);
        });
        tasks.ended().await;
        assert_eq!(turns.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn frozen_group_keeps_its_wakeups() {
        let tasks = Tasks::new();
        let turns = Arc::new(AtomicU64::new(0));
        spawn_counter(&tasks, &turns);
        let (notify, wakeup) = oneshot::channel::<()>();
        let received = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&received);
        tasks.spawn("listener", async move {
            wakeup.await.expect("notified below");
            counter.fetch_add(1, Ordering::SeqCst);
        });
        after(5).await;
        tasks.pause();
        let polls = tasks.polls();
        notify.send(()).expect("the listener waits");
        after(1_000).await;
        assert_eq!(
            (
                turns.load(Ordering::SeqCst),
                received.load(Ordering::SeqCst)
            ),
            (1, 0)
        );
        assert_eq!(tasks.polls(), polls, "no poll while frozen");
        tasks.resume();
        after(5).await;
        assert_eq!(received.load(Ordering::SeqCst), 1);
        assert_eq!(
            turns.load(Ordering::SeqCst),
            2,
            "a timer that ran out meanwhile fires once"
        );
        tasks.pause();
        tasks.kill();
        tasks.ended().await;
    }

    #[tokio::test(start_paused = true)]
    async fn group_dies_right_before_the_named_poll() {
        for n in 1..=4 {
            let tasks = Tasks::new();
            let turns = Arc::new(AtomicU64::new(0));
            tasks.kill_at_poll(n);
            spawn_counter(&tasks, &turns);
            tasks.ended().await;
            assert_eq!(
                (tasks.polls(), turns.load(Ordering::SeqCst)),
                (n - 1, n - 1)
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn panic_ends_the_whole_group_and_is_reported() {
        let tasks = Tasks::new();
        let turns = Arc::new(AtomicU64::new(0));
        spawn_counter(&tasks, &turns);
        tasks.spawn("broken", async {
            after(15).await;
            panic!("lane {} is broken", 7);
        });
        tasks.ended().await;
        assert!(tasks.is_dead());
        assert_eq!(
            tasks.panicked().as_deref(),
            Some("broken: lane 7 is broken")
        );
        assert_eq!(turns.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn group_ends_with_its_last_task() {
        let tasks = Tasks::new();
        tasks.ended().await;
        for millis in [30, 10, 20] {
            tasks.spawn("short", after(millis));
        }
        let started = tokio::time::Instant::now();
        tasks.ended().await;
        assert_eq!(started.elapsed().as_millis(), 30);
        assert!(!tasks.is_dead());
    }
}
