//! A checker's notes of what the store holds. When a standby takes over, the store holds what it
//! held when the standby stopped to follow, and so do the notes.

use std::ops::{Deref, DerefMut};

use crate::event::WorldEvent;

/// Notes that a failover takes back.
#[derive(Default)]
pub(super) struct Books<T> {
    now: T,
    standby: Option<T>,
}

impl<T: Clone> Books<T> {
    /// Every checker shows its books each event before it looks at it itself.
    pub(super) fn follow(&mut self, event: &WorldEvent) {
        if matches!(event, WorldEvent::StandbyStopped) {
            self.standby = Some(self.now.clone());
        }
        if matches!(event, WorldEvent::FailedOver { .. })
            && let Some(standby) = self.standby.take()
        {
            self.now = standby;
        }
    }
}

impl<T> Deref for Books<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.now
    }
}

impl<T> DerefMut for Books<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.now
    }
}
