//! Takes events ahead of the handlers, as `pace` decides, on a session of its own.

use uuid::Uuid;

use super::link::Link;
use super::pace::Order;
use crate::error::Error;
use crate::queue::{self, LeaseRequest, LeasedBatch};

/// Delayed events made ready at once.
const PROMOTE_LIMIT: u32 = 1000;

/// The answer, with the link and the order handed back.
pub(super) struct Arrival {
    pub link: Link,
    pub order: Order,
    /// Lowest id among the delayed events that became ready just before.
    pub promoted: Option<i64>,
    pub batch: Result<LeasedBatch, Error>,
}

/// Promotes what is due and leases, with bounded reconnects.
pub(super) async fn lease(mut link: Link, order: Order) -> Arrival {
    let mut request = LeaseRequest {
        limit: order.limit,
        page: order.page,
        after: order.after,
        token: Uuid::nil(),
        held: &order.held,
        timeout: order.timeout,
        kinds: &order.kinds,
        blocked: &order.blocked,
        known: order.known.as_ref(),
        now: None,
    };
    let mut unsure = Vec::new();
    let outcome = loop {
        // One for each try. What a lost try has taken and keeps is not in our hands: under a token that
        // we hold, it would not keep its group from being leased.
        request.token = Uuid::new_v4();
        match attempt(&mut link, &request, &unsure).await {
            Ok(answer) => break Ok(answer),
            Err(error) => {
                if error.is_connection_lost() {
                    unsure.push(request.token);
                }
                if let Err(error) = link.retry_after(error).await {
                    break Err(error);
                }
            }
        }
    };
    link.recovered();
    let (promoted, batch) = match outcome {
        Ok((promoted, batch)) => (promoted, Ok(batch)),
        Err(error) => (None, Err(error)),
    };
    Arrival {
        link,
        order,
        promoted,
        batch,
    }
}

/// One try, once what earlier ones may have taken is given back. Promote and lease travel together: one
/// round trip, in this order.
async fn attempt(
    link: &mut Link,
    request: &LeaseRequest<'_>,
    unsure: &[Uuid],
) -> Result<(Option<i64>, LeasedBatch), Error> {
    let client = link.client().await?;
    for token in unsure {
        let lost = LeaseRequest {
            token: *token,
            ..request.clone()
        };
        queue::reclaim(client, &lost).await?;
    }
    let (promoted, batch) = futures_util::future::join(
        queue::promote(client, PROMOTE_LIMIT, None),
        queue::lease(client, request),
    )
    .await;
    Ok((promoted?.1, batch?))
}
