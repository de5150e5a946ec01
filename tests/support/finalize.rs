//! Ends and leases events like a worker, without a drain.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use tidegate_core::Error;
use tidegate_core::connect::{Client, Queryable};
use tidegate_core::queue::{Finalization, FinalizeAnswer, Follow, finalize_under};
use uuid::Uuid;

/// Moves events to the log, with one statement for each lease.
pub async fn finalize(
    client: &impl Queryable,
    ends: &[impl Borrow<Finalization> + Sync],
) -> Result<FinalizeAnswer, Error> {
    let mut flushed = FinalizeAnswer::default();
    let mut by_token: BTreeMap<Uuid, Vec<&Finalization>> = BTreeMap::new();
    for end in ends.iter().map(Borrow::borrow) {
        by_token.entry(end.lease.token).or_default().push(end);
    }
    for (token, ends) in by_token {
        let more = finalize_under(client, token, &ends, Follow::IfFree).await?;
        flushed.ended.extend(more.ended);
        flushed.busy.extend(more.busy);
        flushed.published += more.published;
    }
    Ok(flushed)
}

/// Leases events for a worker that does not exist and may have started all of them. The lease expires after
/// this many seconds. With a negative number, it has already expired.
pub async fn lease_away(client: &Client, ids: &[i64], seconds: f64) {
    let lease = "INSERT INTO tidegate.lease (token, worker, ids, started_to, groups, taken_at, renewed_at, expires_at,
                                             clear_to, as_of)
                 SELECT gen_random_uuid(), gen_random_uuid(), tidegate.ranges(array_agg(q.id)), max(q.id),
                        array_agg(DISTINCT hashtext(q.group_key)) FILTER (WHERE q.group_key IS NOT NULL),
                        clock_timestamp(), clock_timestamp(), clock_timestamp() + make_interval(secs => $2), 0,
                        pg_snapshot_xmin(pg_current_snapshot())
                   FROM tidegate.event_queue AS q WHERE q.id = ANY ($1)";
    assert_eq!(client.execute(lease, &[&ids, &seconds]).await.unwrap(), 1);
}
