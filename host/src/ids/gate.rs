//! Which attempt a container is in, and which are over.

use super::{Attempt, Incarnation};
use std::collections::VecDeque;

/// Leaders that are remembered as replaced: restarts are minutes apart, stragglers seconds.
const RETIRED_MAX: usize = 64;

/// What an attempt is to the one that a container is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOrder {
    /// It is the present one.
    Same,
    /// It follows: of the same leader with a greater number, or of a leader that was never seen before.
    Newer,
    /// It is over: of the same leader with a smaller number, or of a leader that was replaced.
    Over,
}

/// The attempt that a container is in, and the leaders that were replaced, whose stragglers must not bring an old attempt
/// back.
///
/// | an attempt of | with a number | is |
/// | --- | --- | --- |
/// | the present leader | equal | [`AttemptOrder::Same`] |
/// | the present leader | greater | [`AttemptOrder::Newer`] |
/// | the present leader | smaller | [`AttemptOrder::Over`] |
/// | one of the last 64 replaced leaders | any | [`AttemptOrder::Over`] |
/// | another leader | any | [`AttemptOrder::Newer`] |
#[derive(Clone, Debug)]
pub struct AttemptGate {
    current: Attempt,
    retired: VecDeque<Incarnation>,
}

impl AttemptGate {
    /// Makes the gate of a container whose first attempt is `current`.
    pub fn new(current: Attempt) -> Self {
        AttemptGate { current, retired: VecDeque::new() }
    }

    /// The present attempt.
    pub fn current(&self) -> Attempt {
        self.current
    }

    /// Tells what `attempt` is to the present one. Changes nothing.
    pub fn order(&self, attempt: Attempt) -> AttemptOrder {
        let same_leader = attempt.leader == self.current.leader;
        if attempt == self.current {
            AttemptOrder::Same
        } else if same_leader && attempt.number < self.current.number || self.retired.contains(&attempt.leader) {
            AttemptOrder::Over
        } else {
            AttemptOrder::Newer
        }
    }

    /// Makes `attempt` the present one and its leader, where it is another, the only one that counts.
    pub fn advance(&mut self, attempt: Attempt) {
        let earlier = std::mem::replace(&mut self.current, attempt);
        if earlier.leader != attempt.leader {
            if self.retired.len() == RETIRED_MAX {
                self.retired.pop_front();
            }
            self.retired.push_back(earlier.leader);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(leader: u64, number: u32) -> Attempt {
        Attempt { leader: Incarnation(leader), number }
    }

    #[test]
    fn attempts_are_ordered_within_a_leader_and_leaders_by_their_appearance() {
        let mut gate = AttemptGate::new(attempt(9, 1));
        gate.advance(attempt(5, 3));
        for (leader, number, order) in [
            (5, 3, AttemptOrder::Same),
            (5, 4, AttemptOrder::Newer),
            (5, 2, AttemptOrder::Over),
            (9, 1, AttemptOrder::Over),
            (9, u32::MAX, AttemptOrder::Over),
            (1, 0, AttemptOrder::Newer),
        ] {
            assert_eq!(gate.order(attempt(leader, number)), order, "{leader}, {number}");
        }
        assert_eq!(gate.current(), attempt(5, 3), "asking changes nothing");
    }

    #[test]
    fn replaced_leaders_are_remembered_within_bounds() {
        let mut gate = AttemptGate::new(attempt(1, 0));
        for leader in 2..=1000 {
            gate.advance(attempt(leader, 0));
            gate.advance(attempt(leader, 1));
        }
        assert_eq!(gate.retired.len(), RETIRED_MAX);
        assert_eq!(gate.order(attempt(999, 7)), AttemptOrder::Over);
        assert_eq!(gate.order(attempt(1000 - RETIRED_MAX as u64, 7)), AttemptOrder::Over);
    }
}
