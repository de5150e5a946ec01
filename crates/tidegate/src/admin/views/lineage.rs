//! Owns how related events become a tree: which event is below which, and in which order. It does not access
//! the database.
//!
//! An event is below the event that it replays or, if it is no replay, below the event whose handler emitted
//! it. So each event has one place.

use std::collections::{HashMap, HashSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most events in a lineage.
pub const MOST_RELATED: usize = 500;

/// How an event is related to the one above it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// It is at the top.
    #[default]
    Root,
    /// A handler of the event above emitted it.
    FollowUp,
    /// An operator published the event above again.
    Replay,
}

/// An event of a lineage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct RelatedEvent {
    /// Its id.
    pub id: i64,
    /// Its kind.
    pub kind: String,
    /// Its status, live or final.
    pub status: String,
    /// How many attempts it has had.
    pub attempts: u32,
    /// When it was published, RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    pub created_at: String,
    /// When it ended; `None` while it is live.
    #[schemars(extend("format" = "date-time"))]
    pub finished_at: Option<String>,
    /// The event whose handler emitted it.
    pub parent_id: Option<i64>,
    /// The event that it replays.
    pub replay_of: Option<i64>,
    /// How it is related to the event above it.
    #[serde(default)]
    pub relation: Relation,
    /// How many events are above it.
    #[serde(default)]
    pub depth: u32,
}

impl RelatedEvent {
    /// Returns the event that it belongs below, stored or not.
    pub fn origin(&self) -> Option<i64> {
        self.replay_of.or(self.parent_id)
    }
}

/// Where an event comes from, and the events that followed from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Lineage {
    /// The topmost stored event.
    pub root: i64,
    /// Whether there are more events than are shown.
    pub truncated: bool,
    /// The tree: each event comes before the events below it, ordered by id.
    pub events: Vec<RelatedEvent>,
}

/// Arranges `related`, which contains `id`, as a tree. The nearest events come first, because those beyond
/// `MOST_RELATED` are left out. Returns `None` when `id` is not among them.
pub(super) fn arrange(id: i64, mut related: Vec<RelatedEvent>) -> Option<Lineage> {
    let truncated = related.len() > MOST_RELATED;
    related.truncate(MOST_RELATED);
    let mut unplaced: HashMap<i64, RelatedEvent> =
        related.into_iter().map(|event| (event.id, event)).collect();
    let root = top(id, &unplaced)?;
    let mut below: HashMap<i64, Vec<i64>> = HashMap::new();
    for event in unplaced.values() {
        if let Some(origin) = event.origin() {
            below.entry(origin).or_default().push(event.id);
        }
    }
    let mut events = Vec::with_capacity(unplaced.len());
    let mut next = vec![(root, 0)];
    while let Some((id, depth)) = next.pop() {
        // A placed event is removed, so even a cycle ends.
        let Some(mut event) = unplaced.remove(&id) else {
            continue;
        };
        event.depth = depth;
        event.relation = match (depth, event.replay_of) {
            (0, _) => Relation::Root,
            (_, Some(_)) => Relation::Replay,
            (_, None) => Relation::FollowUp,
        };
        let mut hanging = below.remove(&id).unwrap_or_default();
        hanging.sort_unstable_by(|one, other| other.cmp(one));
        next.extend(hanging.into_iter().map(|id| (id, depth + 1)));
        events.push(event);
    }
    Some(Lineage {
        root,
        truncated,
        events,
    })
}

/// Returns the farthest stored origin of `id`.
fn top(id: i64, related: &HashMap<i64, RelatedEvent>) -> Option<i64> {
    let mut top = related.get(&id)?;
    let mut seen = HashSet::from([id]);
    while let Some(above) = top.origin().and_then(|origin| related.get(&origin)) {
        if !seen.insert(above.id) {
            break;
        }
        top = above;
    }
    Some(top.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: i64, parent_id: Option<i64>, replay_of: Option<i64>) -> RelatedEvent {
        RelatedEvent {
            id,
            kind: "k".to_owned(),
            status: "COMPLETED".to_owned(),
            attempts: 1,
            created_at: String::new(),
            finished_at: None,
            parent_id,
            replay_of,
            relation: Relation::Root,
            depth: 0,
        }
    }

    fn shape(lineage: &Lineage) -> Vec<(i64, u32, Relation)> {
        let shape = |event: &RelatedEvent| (event.id, event.depth, event.relation);
        lineage.events.iter().map(shape).collect()
    }

    #[test]
    fn a_replay_hangs_on_what_it_replays_and_a_follow_up_on_its_parent() {
        let family = vec![
            event(3, Some(2), None),
            event(2, Some(1), None),
            event(1, None, None),
            event(5, Some(1), None),
            event(4, Some(1), Some(2)),
            event(6, Some(4), None),
        ];
        let lineage = arrange(3, family).unwrap();
        assert_eq!((lineage.root, lineage.truncated), (1, false));
        let follow_up = Relation::FollowUp;
        let expected = [
            (1, 0, Relation::Root),
            (2, 1, follow_up),
            (3, 2, follow_up),
            (4, 2, Relation::Replay),
            (6, 3, follow_up),
            (5, 1, follow_up),
        ];
        assert_eq!(shape(&lineage), expected);
    }

    #[test]
    fn what_is_no_longer_stored_ends_the_way_up() {
        let lineage = arrange(8, vec![event(8, Some(7), None)]).unwrap();
        assert_eq!(shape(&lineage), [(8, 0, Relation::Root)]);
        assert_eq!(arrange(8, Vec::new()), None);
    }

    #[test]
    fn a_cycle_ends() {
        let circle = vec![event(1, Some(2), None), event(2, Some(1), None)];
        assert_eq!(arrange(1, circle).unwrap().events.len(), 2);
    }

    #[test]
    fn the_nearest_stay_when_there_are_too_many() {
        let children = (2..).map(|id| event(id, Some(1), None));
        let family: Vec<RelatedEvent> = std::iter::once(event(1, None, None))
            .chain(children)
            .take(MOST_RELATED + 1)
            .collect();
        let lineage = arrange(1, family).unwrap();
        assert_eq!(
            (lineage.events.len(), lineage.truncated),
            (MOST_RELATED, true)
        );
    }
}
