//! Publishes a sample of everything that enters the forms system, each in its own transaction, and prints
//! what it did. Every run uses new forms, cases and messages.
//!
//! All people in it are invented, including the national id, which no register issues.

use std::time::{SystemTime, UNIX_EPOCH};

use tidegate::connect::Client;
use tidegate_job::app::forms::model::{
    Company, Contact, Employee, Expert, FormStatus, Need, Private,
};
use tidegate_job::app::forms::{
    self, Form, Grant, Letter, Measure, MeasureNotice, SubmitReport, Viewed,
};

use crate::Outcome;

const SOURCE: &str = "sample-case-system";

pub(crate) async fn publish(client: &mut Client) -> Outcome<()> {
    let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    for number in 1..=3 {
        submit(client, &form(&format!("sample-{run}-{number}"))).await?;
    }
    let granted = grant(
        &format!("sample-{run}-G1"),
        with_case(client, run, 4).await?,
    );
    receive_letter(client, &format!("{run}-1"), &granted).await?;
    let elsewhere = Measure {
        case_number: format!("sample-{run}-elsewhere"),
        measure_id: "M1".to_owned(),
    };
    let external = grant(&format!("sample-{run}-G2"), elsewhere);
    receive_letter(client, &format!("{run}-2"), &external).await?;
    receive_letter(client, &format!("{run}-2"), &external).await?;
    let cancelled = notice(run, 3, with_case(client, run, 5).await?);
    let tx = client.transaction().await?;
    let received = forms::cancel(&tx, None, &cancelled).await?;
    tx.commit().await?;
    println!(
        "cancellation {}: {}",
        cancelled.external_id,
        told(&received)
    );
    let declined = notice(run, 4, with_case(client, run, 6).await?);
    let tx = client.transaction().await?;
    let received = forms::decline(&tx, None, &declined).await?;
    tx.commit().await?;
    println!("decline {}: {}", declined.external_id, told(&received));
    view(client, &granted.grant_number).await?;
    Ok(())
}

async fn submit(client: &mut Client, form: &Form) -> Outcome<()> {
    let tx = client.transaction().await?;
    let submitted = forms::submit(&tx, None, form).await?;
    tx.commit().await?;
    println!("form {} handed in: {}", form.id, event_of(&submitted));
    Ok(())
}

/// A form with an open case, so that a message about the case can arrive before the first drain.
async fn with_case(client: &mut Client, run: u128, number: u32) -> Outcome<Measure> {
    let form = form(&format!("sample-{run}-{number}"));
    let case = Measure {
        case_number: format!("sample-{run}-C{number}"),
        measure_id: "M1".to_owned(),
    };
    let tx = client.transaction().await?;
    let submitted = forms::submit(&tx, None, &form).await?;
    let open = "UPDATE forms.form SET case_number = $2, measure_id = $3 WHERE id = $1";
    tx.execute(open, &[&form.id, &case.case_number, &case.measure_id])
        .await?;
    tx.commit().await?;
    println!(
        "form {} with the open case {} handed in: {}",
        form.id,
        case.case_number,
        event_of(&submitted)
    );
    Ok(case)
}

async fn receive_letter(client: &mut Client, external_id: &str, grant: &Grant) -> Outcome<()> {
    let tx = client.transaction().await?;
    let letter = Letter {
        source: SOURCE.to_owned(),
        external_id: external_id.to_owned(),
        grant: grant.clone(),
    };
    let received = forms::receive_letter(&tx, None, &letter).await?;
    tx.commit().await?;
    println!("grant letter {external_id}: {}", told(&received));
    Ok(())
}

fn notice(run: u128, number: u32, measure: Measure) -> MeasureNotice {
    MeasureNotice {
        source: SOURCE.to_owned(),
        external_id: format!("{run}-{number}"),
        measure,
    }
}

async fn view(client: &mut Client, grant_number: &str) -> Outcome<()> {
    let tx = client.transaction().await?;
    let viewed = Viewed {
        grant_number: grant_number.to_owned(),
    };
    let viewed = forms::letter_viewed(&tx, None, &viewed).await?;
    tx.commit().await?;
    println!("letter of grant {grant_number} viewed {}", told(&viewed));
    Ok(())
}

fn told(received: &SubmitReport) -> String {
    let event = event_of(received);
    match &received.form_id {
        Some(form_id) => format!("for our form {form_id}: {event}"),
        None => format!("for a case that no form has: {event}"),
    }
}

fn event_of(submitted: &SubmitReport) -> String {
    match submitted.id {
        Some(id) => format!("event {id}"),
        None if submitted.repeated => "received before, nothing published".to_owned(),
        None => "kept until a form has the case".to_owned(),
    }
}

fn form(id: &str) -> Form {
    Form {
        id: id.to_owned(),
        company: Company {
            number: "000000001".to_owned(),
            name: "Company 1".to_owned(),
            contact: Contact {
                name: Private::new("Contact 1"),
                email: Private::new("contact-1@example.org"),
                phone: Private::new("+47 00 00 00 01"),
            },
        },
        employee: Employee {
            national_id: Private::new("00000000001"),
            name: Private::new("Employee 1"),
        },
        expert: Expert {
            name: Private::new("Expert 1"),
            company: "Company 2".to_owned(),
            competence: "Ergonomics".to_owned(),
        },
        need: Need {
            reason: Private::new("Long absences"),
            requirement: Private::new("An assessment of the place of work"),
            estimated_cost: 25_000,
            hours: 12,
            start_date: "2027-01-11".to_owned(),
        },
        status: FormStatus::Draft,
    }
}

fn grant(grant_number: &str, measure: Measure) -> Grant {
    Grant {
        grant_number: grant_number.to_owned(),
        measure,
        company_number: "000000001".to_owned(),
        amount: 20_000,
        valid_from: "2027-01-11".to_owned(),
        valid_to: "2027-06-30".to_owned(),
    }
}
