//! What a walk knows of the events behind its cursor: so much that a lease need not ask for the first event of each
//! of its groups, to see that nothing of another's hands stands ahead (`tidegate.lease_page` says why that may be
//! known). Pure.

use std::collections::HashSet;

use super::pace::Order;
use crate::queue::{Known, LeasedBatch};

/// Doubtful groups remembered within a walk.
const MOST_DOUBTFUL: usize = 1000;

/// Ids that a lease walks once more, for each event it looks at: dead ones, past which a walk costs nearly nothing, and
/// those in hand. Beyond, asking for each group is the cheaper way.
const WIDEST: i64 = 32;

/// What is known within a walk. Every event with a group that was committed before the walk and has an id up to
/// `seen_to` is gone, in hand, or of a doubtful group.
pub(super) struct Behind {
    seen_to: i64,
    /// Before this transaction all had ended when the walk began.
    began: Option<i64>,
    /// Groups of what was left behind or went back; `None` when they are too many to know.
    doubtful: Option<HashSet<String>>,
}

impl Behind {
    /// At the start of a walk nothing is known, and nothing is behind.
    pub(super) fn new() -> Self {
        Self {
            seen_to: 0,
            began: None,
            doubtful: Some(HashSet::new()),
        }
    }

    /// What spares a lease its probes, while the lowest id in hand is `lowest`.
    pub(super) fn known(&self, order: &Order, lowest: Option<i64>) -> Option<Known> {
        if order.after == 0 {
            return Some(Known {
                clear_to: 0,
                as_of: None,
                doubtful: Vec::new(),
            });
        }
        let clear_to = lowest.map_or(order.after, |lowest| order.after.min(lowest - 1));
        let near = order.after - clear_to <= WIDEST * i64::from(order.page);
        let doubtful = self.doubtful.as_ref()?;
        (order.after <= self.seen_to && near).then(|| Known {
            clear_to,
            as_of: self.began,
            doubtful: doubtful.iter().cloned().collect(),
        })
    }

    /// Learns from a lease that has looked at what is up to `cursor`.
    pub(super) fn learn(&mut self, order: &Order, batch: &mut LeasedBatch, cursor: i64) {
        if order.after == 0 {
            self.began = batch.began;
        }
        if let Some(met) = batch.met.take()
            && order.after <= self.seen_to
        {
            self.seen_to = self.seen_to.max(cursor);
            for group in met {
                self.doubt(&group);
            }
        }
    }

    /// An event of this group may be behind the cursor and not in hand.
    pub(super) fn doubt(&mut self, group: &str) {
        self.doubtful = self.doubtful.take().and_then(|mut doubtful| {
            if !doubtful.contains(group) {
                doubtful.insert(group.to_owned());
            }
            (doubtful.len() <= MOST_DOUBTFUL).then_some(doubtful)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::pace::Pace;

    fn order(after: i64) -> Order {
        let mut order = Order::new(&mut Pace::new(8, 8), 8, true);
        order.after = after;
        order
    }

    fn met(groups: &[&str]) -> LeasedBatch {
        LeasedBatch {
            met: Some(groups.iter().map(|group| (*group).to_owned()).collect()),
            began: Some(500),
            ..LeasedBatch::default()
        }
    }

    /// A walk that has looked at everything up to id 80.
    fn walked(groups: &[&str]) -> Behind {
        let mut behind = Behind::new();
        behind.learn(&order(0), &mut met(groups), 80);
        behind
    }

    fn doubtful(behind: &Behind) -> Vec<String> {
        let mut groups = behind.known(&order(80), None).unwrap().doubtful;
        groups.sort_unstable();
        groups
    }

    #[test]
    fn at_the_start_of_a_walk_nothing_is_behind() {
        let known = Behind::new().known(&order(0), Some(40)).unwrap();
        assert_eq!((known.clear_to, known.as_of), (0, None));
        assert_eq!(Behind::new().known(&order(1), None), None);
    }

    #[test]
    fn i4_the_way_is_clear_up_to_the_lowest_event_in_hand() {
        let behind = walked(&[]);
        let clear_to = |after, lowest| Some(behind.known(&order(after), lowest)?.clear_to);
        assert_eq!(clear_to(80, None), Some(80));
        assert_eq!(clear_to(80, Some(41)), Some(40));
        assert_eq!(clear_to(30, Some(41)), Some(30));
        assert_eq!(behind.known(&order(80), None).unwrap().as_of, Some(500));
    }

    #[test]
    fn nothing_is_known_behind_what_nobody_has_looked_at() {
        let mut behind = walked(&[]);
        behind.learn(&order(80), &mut LeasedBatch::default(), 160);
        assert_eq!(behind.known(&order(160), None), None);
        behind.learn(&order(160), &mut met(&[]), 240);
        assert_eq!(behind.known(&order(240), None), None);
        assert!(behind.known(&order(80), None).is_some());
    }

    #[test]
    fn what_is_too_far_from_the_lowest_in_hand_is_not_looked_at_again() {
        let mut behind = walked(&[]);
        let reach = 8 * WIDEST;
        behind.learn(&order(80), &mut met(&[]), 80 + reach);
        assert!(behind.known(&order(80 + reach), Some(81)).is_some());
        assert!(behind.known(&order(80 + reach), Some(80)).is_none());
    }

    #[test]
    fn i4_groups_that_were_met_or_went_back_are_doubtful_for_the_rest_of_the_walk() {
        let mut behind = walked(&["a"]);
        behind.doubt("b");
        behind.learn(&order(80), &mut met(&["c", "a"]), 80);
        assert_eq!(doubtful(&behind), ["a", "b", "c"]);
        for n in 0..=MOST_DOUBTFUL {
            behind.doubt(&n.to_string());
        }
        behind.learn(&order(80), &mut met(&[]), 80);
        assert_eq!(behind.known(&order(80), None), None);
    }
}
