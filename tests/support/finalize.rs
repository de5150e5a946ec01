//! Ends events like a worker, without a drain.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use tidegate::Error;
use tidegate_core::connect::Queryable;
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
