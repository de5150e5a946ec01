//! Rights that follow from what a party writes. A stranger, a second client with a key of its own, tries each
//! way to the records of another one, over the real routes and with real jobs. Beside each way that is closed
//! stands one that is open, so that no refusal is for another reason.

#![expect(clippy::too_many_lines, reason = "tables: an entry of them is a way")]

use serde_json::{Value, json};
use uuid::Uuid;

use crate::callers::{get, key, post, with_keys};
use crate::http::{Api, drain_with_all_services, link_of};
use crate::medical::world::{signed, with};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    /// The client that the records belong to.
    Owner,
    /// Another client.
    Stranger,
    /// The same, with a key that may confirm approvals.
    Confirming,
    /// Who checks the passwords that patients were sent.
    Checker,
}
use Who::{Checker, Confirming, Owner, Stranger};

/// What somebody asks for, and the code that it ends with.
struct Step(Who, String, Value, u16);

/// Steps; and what of the owner's records the stranger's employee reads after them, and what they change.
struct Way {
    name: &'static str,
    steps: fn(&Patient) -> Vec<Step>,
    reads: &'static [&'static str],
    changes: &'static [&'static str],
}

fn way(name: &'static str, steps: fn(&Patient) -> Vec<Step>) -> Way {
    Way {
        name,
        steps,
        reads: &[],
        changes: &[],
    }
}

impl Way {
    fn reads(self, reads: &'static [&'static str]) -> Self {
        Self { reads, ..self }
    }

    fn changes(self, changes: &'static [&'static str]) -> Self {
        Self { changes, ..self }
    }
}

/// The owner's records of a patient: their kinds and states, and the kind that each is a part of.
const RECORDS: [(&str, &str, Option<&str>); 6] = [
    ("episode", "active", None),
    ("encounter", "finished", Some("episode")),
    ("diagnostic_report", "final", None),
    ("observation", "valid", Some("diagnostic_report")),
    ("procedure", "completed", None),
    ("service_request", "active", None),
];

/// A patient, with records of the owner. The stranger has a procedure and an episode.
struct Patient {
    id: Uuid,
    /// Another patient, of whom nothing is known.
    other: Uuid,
    owner: Uuid,
    stranger: Uuid,
    /// Of the stranger.
    employee: Uuid,
    /// Of the owner, who has an approval of the patient to read the report.
    colleague: Uuid,
    records: [Uuid; 6],
    own_procedure: Uuid,
    own_episode: Uuid,
    /// The id of what a step makes.
    new: Uuid,
}

impl Patient {
    fn of(owner: Uuid, stranger: Uuid) -> Self {
        Self {
            id: Uuid::new_v4(),
            other: Uuid::new_v4(),
            owner,
            stranger,
            employee: Uuid::new_v4(),
            colleague: Uuid::new_v4(),
            records: RECORDS.map(|_| Uuid::new_v4()),
            own_procedure: Uuid::new_v4(),
            own_episode: Uuid::new_v4(),
            new: Uuid::new_v4(),
        }
    }

    fn record(&self, kind: &str) -> Uuid {
        let at = RECORDS.iter().position(|(one, _, _)| *one == kind);
        self.records[at.unwrap()]
    }

    async fn store(&self, api: &Api) {
        let owned = RECORDS.map(|(kind, status, parent)| {
            json!({"kind": kind, "id": self.record(kind), "status": status, "organization_id": self.owner,
                "parent_id": parent.map(|kind| self.record(kind))})
        });
        let own = [
            ("procedure", self.own_procedure, "completed"),
            ("episode", self.own_episode, "active"),
        ];
        let own = own.map(|(kind, id, status)| {
            json!({"kind": kind, "id": id, "status": status, "organization_id": self.stranger})
        });
        let approval = json!({"kind": "approval", "id": Uuid::new_v4(), "status": "active",
            "organization_id": self.owner, "content": {"granted_to": self.colleague, "access_level": "write",
            "resources": [{"entity": "diagnostic_report", "id": self.record("diagnostic_report")}]}});
        let rows: Vec<_> = owned.into_iter().chain(own).chain([approval]).collect();
        let insert = "
INSERT INTO medical.entity (kind, id, patient_id, parent_id, organization_id, status, content, expires_at)
SELECT kind, id, $2, parent_id, organization_id, status, coalesce(content, '{}'),
       CASE WHEN kind = 'service_request' THEN now() + interval '1 day' END
  FROM jsonb_to_recordset($1) AS s(kind text, id uuid, parent_id uuid, organization_id uuid, status text, content jsonb)";
        let stored = api.client.execute(insert, &[&json!(rows), &self.id]).await;
        stored.unwrap();
    }

    /// The kinds of the owner's records that are not as they were, sorted.
    async fn changed(&self, api: &Api, before: &Value) -> Vec<&'static str> {
        let after = self.stored(api).await;
        let kinds = RECORDS.iter().map(|(kind, _, _)| *kind);
        kinds.filter(|kind| before[kind] != after[kind]).collect()
    }

    async fn stored(&self, api: &Api) -> Value {
        let stored = "SELECT jsonb_object_agg(kind, to_jsonb(e) - 'updated_at') FROM medical.entity e WHERE id = ANY ($1)";
        let ids = &self.records[..];
        api.client.query_one(stored, &[&ids]).await.unwrap().get(0)
    }

    fn path(&self, kind: &str, id: Uuid) -> String {
        format!("/patients/{}/{kind}s/{id}", self.id)
    }

    fn job(&self, who: Who, kind: &str, own: &Value, code: u16) -> Step {
        let common = json!({"request_id": "r", "patient_id": self.id, "user_id": self.employee});
        Step(who, format!("/jobs/{kind}"), with(&common, own), code)
    }

    fn asks(&self, own: &Value, code: u16) -> Step {
        let asked = json!({"id": self.new, "granted_to": self.employee, "access_level": "write"});
        self.job(Stranger, "approval_create_job", &with(&asked, own), code)
    }

    fn asks_for(&self, kind: &str) -> Step {
        let resources = json!([{"entity": kind, "id": self.record(kind)}]);
        self.asks(&json!({ "resources": resources }), 200)
    }

    fn confirms(&self, who: Who, status: u16) -> Step {
        let path = format!("{}/confirmation", self.path("approval", self.new));
        let body = json!({"request_id": "r", "user_id": self.employee});
        Step(who, path, body, status)
    }

    /// A job on the owner's service request.
    fn on_request(&self, who: Who, what: &str, own: &Value, code: u16) -> Step {
        let request = json!({"service_request_id": self.record("service_request")});
        let kind = format!("service_request_{what}_job");
        self.job(who, &kind, &with(&request, own), code)
    }

    fn uses(&self) -> Step {
        let own = json!({"used_by_employee": self.employee, "used_by_legal_entity": self.stranger});
        self.on_request(Stranger, "use", &own, 200)
    }

    fn completes(&self, kind: &str, id: Uuid, code: u16) -> Step {
        let own = json!({"status_reason": "done", "completed_with": {"entity": kind, "id": id}});
        self.on_request(Stranger, "complete", &own, code)
    }

    fn closes(&self, code: u16) -> Step {
        let own = json!({"id": self.record("service_request")});
        self.job(Stranger, "service_request_close_job", &own, code)
    }

    fn opens(&self, managed_by: Uuid, referrals: &[Uuid], code: u16) -> Step {
        let own = json!({"id": self.new, "name": "Care", "type": "primary", "status": "active",
            "managing_organization": managed_by, "period": {"start": "2026-01-01"},
            "care_manager": self.employee, "referral_requests": referrals});
        self.job(Stranger, "episode_create_job", &own, code)
    }

    /// A signed entity: `own` with what every new one has.
    fn part(&self, own: &Value) -> Value {
        let part = json!({"id": self.new, "subject": self.id, "code": "A00", "date": "2026-01-15"});
        with(&part, own)
    }

    fn signs(&self, kind: &str, content: &Value, code: u16) -> Step {
        let own = json!({ "signed_data": signed(content) });
        self.job(Stranger, kind, &own, code)
    }

    fn visits(&self, episode: Uuid, more: &Value, code: u16) -> Step {
        let encounter = self.part(&json!({ "episode": episode }));
        let content = with(&json!({ "encounter": encounter }), more);
        let own = json!({"signed_data": signed(&content),
            "visit": {"id": self.new, "period": {"start": "2026-01-01"}}});
        self.job(Stranger, "package_create_job", &own, code)
    }
}

/// Consent is what the patient gives.
fn by_approvals() -> Vec<Way> {
    vec![
        way("asks and confirms itself", |p| {
            let report = p.asks_for("diagnostic_report");
            vec![report, p.confirms(Stranger, 403)]
        }),
        way("confirms what it asked for, with a key that may confirm", |p| {
            let report = p.asks_for("diagnostic_report");
            vec![report, p.confirms(Confirming, 403)]
        }),
        way("the patient agrees", |p| {
            let report = p.asks_for("diagnostic_report");
            vec![report, p.confirms(Checker, 200)]
        })
        .reads(&["diagnostic_report", "observation"]),
        way("the patient agrees to a part", |p| {
            vec![p.asks_for("observation"), p.confirms(Checker, 200)]
        })
        .reads(&["observation"]),
        way("asks for something else under the same id", |p| {
            let asked = p.asks_for("observation");
            let report = json!([{"entity": "diagnostic_report", "id": p.record("diagnostic_report")}]);
            let more = p.asks(&json!({ "resources": report }), 422);
            vec![asked, p.confirms(Checker, 200), more]
        })
        .reads(&["observation"]),
        way("asks for it as another patient's", |p| {
            let report = json!([{"entity": "diagnostic_report", "id": p.record("diagnostic_report")}]);
            let other = json!({"patient_id": p.other, "resources": report});
            vec![p.asks(&other, 422)]
        }),
        way("asks for it as another kind", |p| {
            let report = json!([{"entity": "procedure", "id": p.record("diagnostic_report")}]);
            vec![p.asks(&json!({ "resources": report }), 422)]
        }),
        way("writes with an approval", |p| {
            let update = json!({"id": p.record("episode"), "request_params": {"name": "Other", "care_manager": p.new}});
            let update = |code| p.job(Stranger, "episode_update_job", &update, code);
            let [before, after] = [update(403), update(200)];
            vec![before, p.asks_for("episode"), p.confirms(Checker, 200), after]
        })
        .reads(&["encounter", "episode"])
        .changes(&["episode"]),
    ]
}

/// A service request is used by whoever has its id, which reads it. Nothing else follows.
fn by_service_requests() -> Vec<Way> {
    vec![
        way("uses it", |p| vec![p.uses()])
            .reads(&["service_request"])
            .changes(&["service_request"]),
        way("lets the owner use it", |p| {
            let own = json!({"used_by_employee": p.employee, "used_by_legal_entity": p.owner});
            vec![p.on_request(Stranger, "use", &own, 403)]
        }),
        way("does what its user does", |p| {
            let others = json!({});
            let processes = p.on_request(Stranger, "process", &others, 409);
            let releases = p.on_request(Stranger, "release", &others, 403);
            let report = p.record("diagnostic_report");
            let completes = p.completes("diagnostic_report", report, 409);
            vec![processes, releases, completes, p.closes(403)]
        }),
        way(
            "completes it with the owner's report, and has an approval",
            |p| {
                let approval = p.asks(
                    &json!({"service_request": p.record("service_request")}),
                    200,
                );
                let processes = p.on_request(Stranger, "process", &json!({}), 200);
                let report = p.completes("diagnostic_report", p.record("diagnostic_report"), 422);
                vec![
                    approval,
                    p.confirms(Checker, 200),
                    p.uses(),
                    processes,
                    report,
                ]
            },
        )
        .reads(&["service_request"])
        .changes(&["service_request"]),
        way("completes it with a procedure of its own", |p| {
            let processes = p.on_request(Stranger, "process", &json!({}), 200);
            vec![
                p.uses(),
                processes,
                p.completes("procedure", p.own_procedure, 200),
            ]
        })
        .reads(&["service_request"])
        .changes(&["service_request"]),
        way("refers to it", |p| {
            let request = p.record("service_request");
            vec![p.opens(p.stranger, &[request], 422), p.closes(403)]
        }),
        way("uses it, and refers to it", |p| {
            let request = p.record("service_request");
            vec![
                p.uses(),
                p.opens(p.stranger, &[request], 200),
                p.closes(200),
            ]
        })
        .reads(&["service_request"])
        .changes(&["service_request"]),
        way("refers to it, and has released it", |p| {
            let request = p.record("service_request");
            let releases = p.on_request(Stranger, "release", &json!({}), 200);
            vec![
                p.uses(),
                p.opens(p.stranger, &[request], 200),
                releases,
                p.closes(403),
            ]
        }),
        way("refers to it, and the owner has released it", |p| {
            let request = p.record("service_request");
            let releases = p.on_request(Owner, "release", &json!({}), 200);
            vec![
                p.uses(),
                p.opens(p.stranger, &[request], 200),
                releases,
                p.closes(403),
            ]
        }),
    ]
}

/// What a content says of other entities gives no right to them.
fn by_contents() -> Vec<Way> {
    vec![
        way("opens an episode for the owner", |p| {
            vec![p.opens(p.owner, &[], 403)]
        }),
        way("opens an episode of its own", |p| {
            vec![p.opens(p.stranger, &[], 200)]
        }),
        way("records a visit in the owner's episode", |p| {
            vec![p.visits(p.record("episode"), &json!({}), 403)]
        }),
        way("records a visit in its own episode", |p| {
            vec![p.visits(p.own_episode, &json!({}), 200)]
        }),
        way("records the owner's parts in a visit of its own", |p| {
            let theirs = p.part(&json!({"id": p.record("observation")}));
            vec![p.visits(p.own_episode, &json!({"observations": [theirs]}), 422)]
        }),
        way("records the owner's parts in a report of its own", |p| {
            let report = p.part(&json!({"recorded_by": p.employee}));
            let theirs = p.part(&json!({"id": p.record("observation")}));
            let content = json!({"diagnostic_report": report, "observations": [theirs]});
            vec![p.signs("diagnostic_report_package_create_job", &content, 422)]
        }),
        way("takes the owner's id", |p| {
            let taken = json!({"id": p.record("diagnostic_report"), "recorded_by": p.employee});
            vec![p.signs("procedure_create_job", &p.part(&taken), 422)]
        }),
        way("names the owner's entities in every field", |p| {
            let report = p.record("diagnostic_report");
            let named = json!({"recorded_by": p.employee, "parent_id": report, "organization_id": p.owner,
                "resources": [{"entity": "diagnostic_report", "id": report}], "completed_with": {"entity": "diagnostic_report", "id": report},
                "service_request": p.record("service_request"), "referral_requests": [p.record("service_request")],
                "facts": {"used_by_legal_entity": p.stranger}, "used_by_legal_entity": p.stranger,
                "granted_to": p.employee, "access_level": "write", "status": "completed"});
            vec![p.signs("procedure_create_job", &p.part(&named), 200)]
        }),
        way("changes the referrals of an episode of its own", |p| {
            let params = json!({"name": "Care", "care_manager": p.employee,
                "referral_requests": [p.record("service_request")]});
            let own = json!({"id": p.own_episode, "request_params": params});
            vec![p.job(Stranger, "episode_update_job", &own, 422)]
        }),
    ]
}

/// The interface, and a key of each party.
struct Scene {
    api: Api,
    owner: Uuid,
    stranger: Uuid,
    keys: [(Who, String); 4],
}

impl Scene {
    async fn new() -> Self {
        let api = with_keys().await;
        let [owner, stranger, checker] = [(); 3].map(|()| Uuid::new_v4());
        let keys = [
            (Owner, key(&api, owner, &["jobs"]).await.0),
            (Stranger, key(&api, stranger, &["jobs"]).await.0),
            (
                Confirming,
                key(&api, stranger, &["jobs", "approvals"]).await.0,
            ),
            (Checker, key(&api, checker, &["approvals"]).await.0),
        ];
        Self {
            api,
            owner,
            stranger,
            keys,
        }
    }

    fn key(&self, who: Who) -> &str {
        let mut found = self.keys.iter().filter(|(one, _)| *one == who);
        &found.next().unwrap().1
    }

    /// Takes a step. A job that is accepted is done. Returns the code that it ends with.
    async fn take(&self, Step(who, path, body, _): &Step) -> u16 {
        let key = self.key(*who);
        let (status, answer) = post(&self.api, path, key, body).await;
        if status != 202 {
            return status;
        }
        drain_with_all_services(&self.api).await;
        let (_, job) = get(&self.api, &link_of(&answer).href, key).await;
        let code = job["data"]["status_code"].as_u64();
        code.map_or(0, |code| u16::try_from(code).unwrap())
    }

    /// Takes the steps of a way. Returns what was not as it says.
    async fn walk(&self, way: &Way) -> Vec<String> {
        let Self { api, .. } = self;
        let patient = Patient::of(self.owner, self.stranger);
        patient.store(api).await;
        let before = patient.stored(api).await;
        let mut odd = Vec::new();
        for step in (way.steps)(&patient) {
            let code = self.take(&step).await;
            if code != step.3 {
                odd.push(format!("{:?} {} ends with {code}", step.0, step.1));
            }
        }
        let [read, as_colleague, by_owner] = [
            (Stranger, patient.employee),
            (Stranger, patient.colleague),
            (Owner, patient.colleague),
        ]
        .map(|(who, user)| self.read(&patient, who, user));
        let (read, as_colleague) = (read.await, as_colleague.await);
        if read != way.reads {
            odd.push(format!("the stranger reads {read:?}"));
        }
        // Of what an approval permits, another employee reads nothing; nor does the owner's approval help.
        let used = ["service_request"];
        let used = used.iter().filter(|kind| way.reads.contains(kind));
        if !as_colleague.iter().eq(used) {
            odd.push(format!(
                "as a colleague, the stranger reads {as_colleague:?}"
            ));
        }
        if by_owner.await.len() != RECORDS.len() {
            odd.push("the owner does not read all".to_owned());
        }
        let changed = patient.changed(api, &before).await;
        if changed != way.changes {
            odd.push(format!("changed is {changed:?}"));
        }
        odd.iter()
            .map(|odd| format!("{}: {odd}", way.name))
            .collect()
    }

    /// The kinds of the owner's records that somebody reads, sorted.
    async fn read(&self, patient: &Patient, who: Who, user: Uuid) -> Vec<&'static str> {
        let mut read = Vec::new();
        for (kind, _, _) in RECORDS {
            let path = patient.path(kind, patient.record(kind));
            let asked = format!("{path}?user_id={user}");
            match get(&self.api, &asked, self.key(who)).await.0 {
                200 => read.push(kind),
                status => assert_eq!(status, 403, "{kind}"),
            }
        }
        read.sort_unstable();
        read
    }
}

#[tokio::test]
async fn what_a_stranger_writes_gives_it_no_right_to_a_record_of_others() {
    let scene = Scene::new().await;
    let mut odd = Vec::new();
    for way in [by_approvals(), by_service_requests(), by_contents()]
        .iter()
        .flatten()
    {
        odd.extend(scene.walk(way).await);
    }
    assert!(odd.is_empty(), "{odd:#?}");
}
