//! A checker's model of what the store holds. When a standby is promoted, the store holds the state at which
//! the standby stopped replicating, and so does the model.

use std::ops::{Deref, DerefMut};

use crate::event::WorldEvent;

/// A model that a failover rolls back.
#[derive(Default)]
pub(super) struct StoreModel<T> {
    now: T,
    standby: Option<T>,
}

impl<T: Clone> StoreModel<T> {
    /// Every checker passes each event to its model before it inspects it.
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

impl<T> Deref for StoreModel<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.now
    }
}

impl<T> DerefMut for StoreModel<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.now
    }
}
