//! The queue as a sequential program: what each statement does when nothing happens beside it. Time is
//! counted in hours since the script began.

use tidegate::event::Lease;
use tidegate::queue::Known;
use uuid::Uuid;

use super::step::End;

/// A lease's length.
pub const LEASE: i64 = 1;

const DAY: i64 = 24;

/// Everything was written since.
const FIRST_TRANSACTION: i64 = 3;

/// A live event. Times are what the tables show: hours from now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub id: i64,
    pub group: Option<String>,
    pub dedup: Option<String>,
    pub attempts: i32,
    pub max_attempts: i32,
    pub delayed: bool,
    pub available: i64,
    pub deadline: Option<i64>,
    pub started: bool,
    pub token: Option<Uuid>,
    pub leased_until: Option<i64>,
    pub last_error: Option<String>,
    pub codes: Vec<String>,
    pub parent: Option<i64>,
    pub replay_of: Option<i64>,
}

/// An event in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub id: i64,
    pub group: Option<String>,
    pub dedup: Option<String>,
    pub status: &'static str,
    pub attempts: i32,
    pub max_attempts: i32,
    pub deadline: Option<i64>,
    pub started: bool,
    pub token: Option<Uuid>,
    pub codes: Vec<String>,
    pub parent: Option<i64>,
    pub replay_of: Option<i64>,
    pub kept_until: i64,
}

/// All that is compared.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tables {
    pub queue: Vec<Row>,
    pub log: Vec<Ended>,
    /// Operators' actions: which, and on what.
    pub audit: Vec<(String, Vec<i64>)>,
}

/// A lease as its worker got it.
#[derive(Debug, Clone, Copy)]
pub struct Granted {
    pub lease: Lease,
    pub counted: bool,
}

#[derive(Debug, Default)]
pub struct Model {
    tables: Tables,
    pub granted: Vec<Granted>,
    /// Each worker's tokens.
    pub tokens: [Vec<Uuid>; 2],
    /// Every id that was ever given.
    pub ids: Vec<i64>,
}

/// What a lease brings: id, fate, attempts of each; and how many rows were looked at.
pub type Batch = (Vec<(i64, i32, i32)>, usize);

impl Model {
    pub fn tables(&self) -> Tables {
        self.tables.clone()
    }

    fn live(&mut self, id: i64) -> Option<&mut Row> {
        self.tables.queue.iter_mut().find(|row| row.id == id)
    }

    fn held(&mut self, lease: Lease) -> Option<&mut Row> {
        self.live(lease.id)
            .filter(|row| row.token == Some(lease.token))
    }

    /// One of all leases ever granted, most of which are held no more.
    pub fn pick_lease(&self, pick: usize) -> Option<Granted> {
        let count = self.granted.len();
        // Counted from the last, which is the most likely to be held.
        (count > 0).then(|| self.granted[count - 1 - pick % count])
    }

    /// One of all ids ever, or one that nobody has.
    pub fn pick_id(&self, pick: usize) -> i64 {
        let unknown = i64::from(i32::MAX);
        let place = pick % (self.ids.len() + 1);
        self.ids.get(place).copied().unwrap_or(unknown)
    }

    pub fn twin(&self, dedup: Option<&String>) -> Option<i64> {
        let has_key = |row: &&Row| dedup.is_some() && row.dedup.as_ref() == dedup;
        self.tables.queue.iter().find(has_key).map(|row| row.id)
    }

    /// A new event; the database gives the id.
    pub fn insert(&mut self, row: Row) -> Result<(), String> {
        let last = self.ids.last().copied().unwrap_or(0);
        if row.id <= last {
            return Err(format!("id {} was given after {last}", row.id));
        }
        self.ids.push(row.id);
        self.tables.queue.push(row);
        Ok(())
    }

    /// What is true of so many of the first events.
    pub fn known(&self, (count, of_all): (usize, bool)) -> Known {
        let last = self.ids.iter().take(count).next_back();
        let clear_to = last.copied().unwrap_or(0);
        let behind = self.tables.queue.iter().filter(|row| row.id <= clear_to);
        Known {
            clear_to,
            as_of: (!of_all).then_some(FIRST_TRANSACTION),
            doubtful: behind.filter_map(|row| row.group.clone()).collect(),
        }
    }

    /// What a lease that knows this meets besides, before it takes anything.
    pub fn met(
        &self,
        known: &Known,
        worker: usize,
        page: u32,
        says_held: bool,
    ) -> Option<Vec<String>> {
        let scan = self.scan(worker, page, says_held);
        let looked_at: Vec<&Row> = self
            .tables
            .queue
            .iter()
            .filter(|row| row.id > known.clear_to && Some(&row.id) <= scan.last())
            .collect();
        let has_a_group = |row: &Row| row.group.is_some() && scan.contains(&row.id);
        let is_asked =
            self.tables.queue.iter().any(has_a_group) && looked_at.len() < 8 * page as usize;
        let is_skipped = |row: &Row| says_held && self.is_own(row, worker);
        let strange = |row: &&Row| !scan.contains(&row.id) && !is_skipped(row);
        let groups = looked_at
            .into_iter()
            .filter(strange)
            .filter_map(|row| row.group.clone())
            .filter(|group| !known.doubtful.contains(group));
        is_asked.then(|| groups.collect())
    }

    fn is_own(&self, row: &Row, worker: usize) -> bool {
        row.token
            .is_some_and(|token| self.tokens[worker].contains(&token))
    }

    /// The ids that a lease looks at.
    fn scan(&self, worker: usize, page: u32, says_held: bool) -> Vec<i64> {
        let is_ready = |row: &&Row| {
            !row.delayed
                && row.available <= 0
                && row.is_free()
                && !(says_held && self.is_own(row, worker))
        };
        let ready = self.tables.queue.iter().filter(is_ready);
        ready.take(page as usize).map(|row| row.id).collect()
    }

    pub fn lease(
        &mut self,
        worker: usize,
        token: Uuid,
        (limit, page): (u32, u32),
        says_held: bool,
    ) -> Batch {
        let queue = &self.tables.queue;
        let scan = self.scan(worker, page, says_held);
        let is_cut = |row: &Row| {
            row.group.is_some()
                && queue.iter().any(|ahead| {
                    ahead.group == row.group
                        && ahead.id < row.id
                        && !(says_held && self.is_own(ahead, worker))
                        && !scan.contains(&ahead.id)
                })
        };
        let chosen: Vec<i64> = queue
            .iter()
            .filter(|row| scan.contains(&row.id) && !is_cut(row))
            .take(limit as usize)
            .map(|row| row.id)
            .collect();
        let mut events = Vec::new();
        for row in &mut self.tables.queue {
            if chosen.contains(&row.id) {
                events.push(row.take(token));
            }
        }
        for (id, fate, _) in &events {
            let lease = Lease { id: *id, token };
            let counted = *fate == 0;
            self.granted.push(Granted { lease, counted });
        }
        self.tokens[worker].push(token);
        (events, scan.len())
    }

    /// Ids, and the lowest.
    pub fn promote(&mut self) -> (u64, Option<i64>) {
        let due = |row: &&mut Row| row.delayed && row.available <= 0;
        let mut promoted = Vec::new();
        for row in self.tables.queue.iter_mut().filter(due) {
            row.delayed = false;
            promoted.push(row.id);
        }
        (promoted.len() as u64, promoted.first().copied())
    }

    /// Whether it was held, and so is in the log now.
    pub fn finalize(&mut self, lease: Lease, end: End) -> bool {
        let (status, code) = match end {
            End::Completed => ("COMPLETED", None),
            End::CompletedWithErrors => ("COMPLETED_WITH_ERRORS", Some("odd")),
            End::Failed => ("FAILED", Some("given_up")),
        };
        let is_held = self.held(lease).is_some();
        if is_held {
            self.end(lease.id, status, code, Some(lease.token));
        }
        is_held
    }

    fn end(&mut self, id: i64, status: &'static str, code: Option<&str>, token: Option<Uuid>) {
        let Some(place) = self.tables.queue.iter().position(|row| row.id == id) else {
            return;
        };
        let row = self.tables.queue.remove(place);
        let kept = if status == "COMPLETED" { 30 } else { 90 };
        let mut codes = row.codes;
        codes.extend(code.map(ToOwned::to_owned));
        let log = &mut self.tables.log;
        let place = log.partition_point(|ended| ended.id < id);
        log.insert(
            place,
            Ended {
                id,
                group: row.group,
                dedup: row.dedup,
                status,
                attempts: row.attempts,
                max_attempts: row.max_attempts,
                deadline: row.deadline,
                started: row.started,
                token,
                codes,
                parent: row.parent,
                replay_of: row.replay_of,
                kept_until: kept * DAY,
            },
        );
    }

    pub fn retry(&mut self, lease: Lease, delay: i64) -> bool {
        self.held(lease).is_some_and(|row| {
            row.put_back();
            (row.available, row.delayed) = (delay, delay > 0);
            row.last_error = Some("again: because".to_owned());
            row.codes.push("again".to_owned());
            true
        })
    }

    pub fn release(&mut self, granted: Granted) -> bool {
        self.held(granted.lease).is_some_and(|row| {
            let counted = i32::from(granted.counted);
            row.put_back();
            row.started &= row.attempts > counted;
            row.attempts -= counted;
            true
        })
    }

    pub fn renew(&mut self, lease: Lease) -> bool {
        self.held(lease).is_some_and(|row| {
            row.leased_until = Some(LEASE);
            true
        })
    }

    pub fn requeue(&mut self, id: i64) -> bool {
        let found = self.live(id).is_some_and(|row| {
            row.requeue();
            true
        });
        self.note("requeue", found.then_some(id));
        found
    }

    fn note(&mut self, action: &str, id: Option<i64>) {
        let ids = id.into_iter().collect();
        self.tables.audit.push((action.to_owned(), ids));
    }

    fn head(&self, group: &str) -> Option<&Row> {
        let is_of_it = |row: &&Row| row.group.as_deref() == Some(group);
        self.tables.queue.iter().find(is_of_it)
    }

    pub fn cancel(&mut self, group: &str) -> Option<i64> {
        let id = self.head(group).map(|row| row.id);
        if let Some(id) = id {
            self.end(id, "FAILED", Some("cancelled"), None);
        }
        self.note("unblock", id);
        id
    }

    /// The event that is put behind its group.
    pub fn skip(&mut self, group: &str) -> Option<Ended> {
        let head = self.head(group).filter(|row| !row.is_late());
        let id = head.map(|row| row.id);
        if let Some(id) = id {
            self.end(id, "FAILED", Some("skipped"), None);
        }
        self.note("unblock", id);
        id.and_then(|id| self.ended(id))
    }

    fn ended(&self, id: i64) -> Option<Ended> {
        self.tables.log.iter().find(|ended| ended.id == id).cloned()
    }

    /// The event that is replayed, if nothing stands in the way.
    pub fn replay(&mut self, id: i64, renews: bool) -> Option<Ended> {
        let original = self.ended(id).filter(|ended| {
            let is_live = self
                .tables
                .queue
                .iter()
                .any(|row| row.replay_of == Some(id));
            let is_late = ended.deadline.is_some_and(|deadline| deadline <= 0);
            !is_live && self.twin(ended.dedup.as_ref()).is_none() && (!is_late || renews)
        });
        self.note("replay", original.as_ref().map(|ended| ended.id));
        original
    }

    /// Those past their deadline, those abandoned.
    pub fn sweep(&mut self) -> (Vec<i64>, Vec<i64>) {
        let is_over = |row: &&Row| row.is_free() && (row.is_late() || row.is_exhausted());
        let over = self.tables.queue.iter().filter(is_over);
        let (late, rest): (Vec<&Row>, Vec<&Row>) = over.partition(|row| row.is_late());
        let ids = |rows: Vec<&Row>| rows.iter().map(|row| row.id).collect::<Vec<_>>();
        let (expired, abandoned) = (ids(late), ids(rest));
        for id in &expired {
            self.end(*id, "FAILED", Some("expired"), None);
        }
        for id in &abandoned {
            self.end(*id, "FAILED", Some("abandoned"), None);
        }
        (expired, abandoned)
    }

    /// How many rows leave the log.
    pub fn clean(&mut self) -> usize {
        let before = self.tables.log.len();
        self.tables.log.retain(|ended| ended.kept_until > 0);
        before - self.tables.log.len()
    }

    pub fn pass(&mut self, hours: i64) {
        for row in &mut self.tables.queue {
            row.available -= hours;
            row.deadline = row.deadline.map(|time| time - hours);
            row.leased_until = row.leased_until.map(|time| time - hours);
        }
        for ended in &mut self.tables.log {
            ended.deadline = ended.deadline.map(|time| time - hours);
            ended.kept_until -= hours;
        }
    }
}

impl Row {
    /// As it is published.
    pub fn new(id: i64, max_attempts: i32) -> Self {
        Self {
            id,
            group: None,
            dedup: None,
            attempts: 0,
            max_attempts,
            delayed: false,
            available: 0,
            deadline: None,
            started: false,
            token: None,
            leased_until: None,
            last_error: None,
            codes: Vec::new(),
            parent: None,
            replay_of: None,
        }
    }

    /// As a replay of this one.
    pub fn replay(id: i64, original: &Ended) -> Self {
        let is_late = original.deadline.is_some_and(|deadline| deadline <= 0);
        Self {
            group: original.group.clone(),
            dedup: original.dedup.clone(),
            deadline: original
                .deadline
                .map(|time| if is_late { RENEWED } else { time }),
            replay_of: Some(original.id),
            ..Self::new(id, original.max_attempts)
        }
    }

    fn is_free(&self) -> bool {
        self.leased_until.is_none_or(|time| time <= 0)
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|time| time <= 0)
    }

    fn is_exhausted(&self) -> bool {
        self.attempts >= self.max_attempts
    }

    fn take(&mut self, token: Uuid) -> (i64, i32, i32) {
        let fate = if self.is_late() {
            1
        } else if self.is_exhausted() {
            2
        } else {
            0
        };
        self.attempts += i32::from(fate == 0);
        self.started = true;
        (self.token, self.leased_until) = (Some(token), Some(LEASE));
        (self.id, fate, self.attempts)
    }

    fn put_back(&mut self) {
        (self.token, self.leased_until) = (None, None);
    }

    fn requeue(&mut self) {
        self.put_back();
        (self.available, self.delayed) = (self.available.min(0), false);
        self.max_attempts = self.max_attempts.max(self.attempts + 1);
    }
}

/// What a replay's passed deadline becomes, if it is given anew.
pub const RENEWED: i64 = 2;
