//! The one real source of time and chance. It lives with the nonce component, whose users outside of this
//! program need it too.

pub(crate) use nonce::SystemClock;
