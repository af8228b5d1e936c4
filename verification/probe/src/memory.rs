//! An allocator that counts, so that an input which takes too much memory is found.

#![expect(
    unsafe_code,
    reason = "an allocator is an unsafe trait; this one only counts and passes on to the system's"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted. To be named in the program that measures:
/// `#[global_allocator] static ALLOCATOR: probe::memory::Counting = probe::memory::Counting;`
#[derive(Clone, Copy, Debug)]
pub struct Counting;

/// The bytes that are taken at a moment, from which on the most is measured. All threads count: work
/// that is handed to another one costs the same memory.
#[derive(Clone, Copy, Debug)]
pub struct Mark(usize);

impl Mark {
    /// From now on.
    #[must_use]
    pub fn now() -> Self {
        let live = LIVE.load(Ordering::Relaxed);
        PEAK.store(live, Ordering::Relaxed);
        Self(live)
    }

    /// The most that was taken since, over what was taken then.
    #[must_use]
    pub fn most_since(self) -> usize {
        PEAK.load(Ordering::Relaxed).saturating_sub(self.0)
    }
}

fn took(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
    PEAK.fetch_max(live, Ordering::Relaxed);
}

fn gave(bytes: usize) {
    LIVE.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator with the layout that came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`, which is the same there.
        let place = unsafe { System.alloc(layout) };
        if !place.is_null() {
            took(layout.size());
        }
        place
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let place = unsafe { System.alloc_zeroed(layout) };
        if !place.is_null() {
            took(layout.size());
        }
        place
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above; `place` came from the system's allocator with this layout.
        unsafe { System.dealloc(place, layout) };
        gave(layout.size());
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let moved = unsafe { System.realloc(place, layout, size) };
        if !moved.is_null() {
            gave(layout.size());
            took(size);
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_still_counts_as_the_most() {
        let mark = Mark::now();
        // SAFETY: a fresh place of this layout, freed once.
        unsafe {
            let layout = Layout::array::<u8>(1 << 20).unwrap();
            let place = Counting.alloc(layout);
            let place = Counting.realloc(place, layout, 2 << 20);
            Counting.dealloc(place, Layout::array::<u8>(2 << 20).unwrap());
        }
        assert_eq!(mark.most_since(), 2 << 20);
        assert_eq!(Mark::now().most_since(), 0);
    }
}
