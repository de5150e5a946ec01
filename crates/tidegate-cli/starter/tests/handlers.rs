//! Tests the handlers without a database.

use tidegate::testing::{Attempt, Ran, Status, handlers_of};

use {{crate}}::{App, Event, OrderPlaced, OrderShipped};

async fn placed(order_id: i64) -> Ran {
    let event = Event::OrderPlaced(OrderPlaced { order_id });
    Attempt::first().run(&App, &event).await
}

#[tokio::test]
async fn an_order_is_shipped() {
    let ran = placed(7).await;
    assert_eq!(ran.status, Some(Status::Completed));
    let follow_ups = ran.follow_ups::<Event>().unwrap();
    let [Event::OrderShipped(shipped)] = &follow_ups[..] else {
        panic!("{follow_ups:?}");
    };
    assert_eq!((shipped.order_id, &*shipped.parcel), (7, "parcel-7"));
}

#[tokio::test]
async fn an_order_that_the_carrier_does_not_know_is_rejected() {
    let ran = placed(0).await;
    assert_eq!(ran.status, Some(Status::CompletedWithErrors));
    assert!(ran.published().is_empty());
}

#[test]
fn the_handler_that_books_calls_no_service() {
    let shipped = Event::OrderShipped(OrderShipped {
        order_id: 7,
        parcel: "parcel-7".to_owned(),
    });
    assert_eq!(handlers_of(&App, &shipped), [("book", None)]);
}
