//! Records the program's own spans, of the crate `tracing`, below the handlers that create them. Their fields are never
//! sent: `#[instrument]` puts every argument into them, including payloads (I9).

use std::time::SystemTime;

use tracing::span::{Attributes, Id};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::{Kind, Span, Spool, here};
use crate::trace::{self, TraceContext};

/// Records spans of the program's own crate.
pub(crate) struct OwnSpans {
    pub ours: &'static str,
}

/// An open span.
struct Open {
    position: TraceContext,
    began: SystemTime,
    spool: Spool,
}

impl OwnSpans {
    fn takes(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().split("::").next() == Some(self.ours)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for OwnSpans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        if !self.takes(attributes.metadata()) {
            return;
        }
        let Some(span) = ctx.span(id) else { return };
        let above = span.scope().skip(1).find_map(|above| {
            let extensions = above.extensions();
            let open = extensions.get::<Open>()?;
            Some((open.position.clone(), open.spool.clone()))
        });
        // The outermost span is a child of its handler.
        let above = above.or_else(|| trace::current().zip(here()));
        if let Some((above, spool)) = above.filter(|(above, _)| above.is_sampled()) {
            span.extensions_mut().insert(Open {
                position: above.child(),
                began: SystemTime::now(),
                spool,
            });
        }
    }

    fn on_close(&self, id: Id, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(&id) else { return };
        if let Some(open) = span.extensions_mut().remove::<Open>() {
            let made = Span::new(&open.position, Kind::Internal, span.name().to_owned())
                .lasting(open.began, SystemTime::now());
            open.spool.push(made);
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing::Instrument;
    use tracing_subscriber::layer::SubscriberExt;

    use super::super::{Spool, within};
    use super::*;

    #[tokio::test]
    async fn own_spans_nest_below_the_work_that_is_recorded_and_say_nothing_of_their_fields() {
        let layer = OwnSpans { ours: "tidegate" };
        let subscriber = tracing_subscriber::registry().with(layer);
        let _here = tracing::subscriber::set_default(subscriber);
        let spool = Spool::unused();
        let position = TraceContext::root(true);
        let work = async {
            let outer = tracing::info_span!("outer", card = "canary");
            async { tracing::info_span!("inner").in_scope(|| {}) }
                .instrument(outer)
                .await;
            tracing::info_span!(target: "other", "not ours").in_scope(|| {});
        };
        within(
            Some(spool.clone()),
            trace::within(Some(position.clone()), work),
        )
        .await;
        tracing::info_span!("outside").in_scope(|| {});
        let unsampled = Some(TraceContext::root(false));
        let work = async { tracing::info_span!("unsampled").in_scope(|| {}) };
        within(Some(spool.clone()), trace::within(unsampled, work)).await;
        let (spans, _) = spool.take();
        let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
        assert_eq!(names, ["inner", "outer"]);
        assert_eq!(spans[0].parent_span_id, spans[1].span_id);
        let above = Span::new(&position, Kind::Internal, String::new()).into_sent();
        assert_eq!(spans[1].parent_span_id, above.span_id);
        assert!(!format!("{spans:?}").contains("canary"));
    }
}
