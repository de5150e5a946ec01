-- The tables of the forms system, in a schema of their own. The queue does not use them, and no foreign key
-- connects the two, so either can be migrated, emptied or moved alone.
--
-- They exist for two reasons. A handler needs rows to be idempotent: the same event twice must leave the same
-- row. And a message from outside must be distinguished from its own repetition in the transaction that
-- publishes its event. Views of a grant letter have no table, because the queue's own statistics count them.

CREATE SCHEMA forms;

CREATE TABLE forms.form (
    -- The id that its creator gave it. That of a client begins with the client and a slash, so that no client
    -- takes another one's ids.
    id                   text        PRIMARY KEY,
    company_number       text        NOT NULL,
    company_name         text        NOT NULL,
    contact_name         text        NOT NULL,
    contact_email        text        NOT NULL,
    contact_phone        text        NOT NULL,
    employee_national_id text        NOT NULL,
    employee_name        text        NOT NULL,
    expert_name          text        NOT NULL,
    expert_company       text        NOT NULL,
    expert_competence    text        NOT NULL,
    need_reason          text        NOT NULL,
    need_requirement     text        NOT NULL,
    need_estimated_cost  bigint      NOT NULL,
    need_hours           integer     NOT NULL,
    need_start_date      date        NOT NULL,
    status               text        NOT NULL,
    -- Its number in the case system. Null until its case is open.
    case_number          text,
    measure_id           text,
    created_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The client that submitted it over HTTP, and may read it there. Other ways in have none.
    client_id            uuid,
    CONSTRAINT id_is_1_to_137_characters CHECK (char_length(id) BETWEEN 1 AND 137),
    CONSTRAINT id_begins_with_the_client CHECK (starts_with(id, client_id::text || '/')),
    CONSTRAINT company_number_is_9_digits CHECK (company_number ~ '^[0-9]{9}$'),
    CONSTRAINT employee_national_id_is_11_digits CHECK (employee_national_id ~ '^[0-9]{11}$'),
    CONSTRAINT need_estimated_cost_is_not_negative CHECK (need_estimated_cost >= 0),
    CONSTRAINT need_hours_is_not_negative CHECK (need_hours >= 0),
    CONSTRAINT status_is_known CHECK (status IN ('submitted', 'approved', 'cancelled', 'declined')),
    CONSTRAINT case_is_whole CHECK ((case_number IS NULL) = (measure_id IS NULL))
);

-- A message from the case system names its case, never the form, so two forms cannot have the same case.
CREATE UNIQUE INDEX form_case ON forms.form (case_number, measure_id) WHERE case_number IS NOT NULL;

-- The steps of a form, oldest first: the events of its group, without their content. Readers of forms may not
-- read events.
CREATE FUNCTION forms.steps(form_id text) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER AS $$
    -- Materialized: with the limit in sight, the planner may walk all events by their ids.
    WITH own AS MATERIALIZED (
        SELECT j.id, j.kind, j.status, j.created_at, j.finished_at FROM @tidegate.jobs AS j
         WHERE j.correlation_id = steps.form_id AND j.group_key = 'form:' || steps.form_id
    )
    SELECT coalesce(jsonb_agg(to_jsonb(s) - 'id' ORDER BY s.id), '[]') FROM (SELECT * FROM own ORDER BY id LIMIT 100) AS s
$$;

-- For a letter: the forms of its company whose case is still being opened.
CREATE INDEX form_without_case ON forms.form (company_number) WHERE case_number IS NULL;

-- A form of a company whose case is still being opened: it has no number yet, but events that lead to one. A
-- letter to the company may be about this case. Readers of forms may not read events.
CREATE FUNCTION forms.opening(company_number text) RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER AS $$
    SELECT f.id FROM forms.form AS f
     WHERE f.company_number = opening.company_number AND f.case_number IS NULL
       AND EXISTS (SELECT FROM @tidegate.event_queue AS q
                    WHERE q.group_key = 'form:' || f.id AND q.kind IN ('form_submitted', 'form_archived'))
     ORDER BY f.created_at, f.id LIMIT 1
$$;

-- Every message from outside, once. Its key identifies a repetition. The client that sent it over HTTP is
-- part of the key, so that no client takes another one's ids. Other ways in, and callers who are not
-- identified, have none.
CREATE TABLE forms.message (
    id          uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    client_id   uuid,
    source      text        NOT NULL,
    external_id text        NOT NULL,
    subject     text        NOT NULL,
    form_id     text        REFERENCES forms.form,
    content     jsonb       NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT message_is_received_once UNIQUE NULLS NOT DISTINCT (client_id, source, external_id),
    CONSTRAINT source_is_1_to_100_characters CHECK (char_length(source) BETWEEN 1 AND 100),
    CONSTRAINT external_id_is_1_to_200_characters CHECK (char_length(external_id) BETWEEN 1 AND 200),
    CONSTRAINT subject_is_known CHECK (subject IN ('grant_letter', 'cancellation', 'decline'))
);

-- For the reference to a form: without this index, deleting a form scans all messages.
CREATE INDEX message_form ON forms.message (form_id) WHERE form_id IS NOT NULL;

-- For a form whose case has just been opened: the messages that came before it.
CREATE INDEX message_case ON forms.message ((coalesce(content->'measure', content))) WHERE form_id IS NULL;

-- Grants, as announced in their letters. A grant without a form belongs to a case of another system.
CREATE TABLE forms.awarded_grant (
    grant_number   text        PRIMARY KEY,
    form_id        text        REFERENCES forms.form,
    case_number    text        NOT NULL,
    measure_id     text        NOT NULL,
    company_number text        NOT NULL,
    amount         bigint      NOT NULL,
    valid_from     date        NOT NULL,
    valid_to       date        NOT NULL,
    document_id    text        NOT NULL,
    journal_id     text        NOT NULL,
    saved_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT grant_number_is_1_to_100_characters CHECK (char_length(grant_number) BETWEEN 1 AND 100),
    CONSTRAINT amount_is_not_negative CHECK (amount >= 0),
    CONSTRAINT validity_does_not_end_before_it_starts CHECK (valid_to >= valid_from)
);

CREATE INDEX awarded_grant_form ON forms.awarded_grant (form_id) WHERE form_id IS NOT NULL;

-- What companies read. An operator changes a text with UPDATE, which the audit records, and the next message
-- has it.
CREATE TABLE forms.notice (
    about text NOT NULL,
    part  text NOT NULL,
    text  text NOT NULL,
    PRIMARY KEY (about, part),
    CONSTRAINT text_is_1_to_1000_characters CHECK (char_length(text) BETWEEN 1 AND 1000)
);

CREATE FUNCTION forms.record_notice() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM @tidegate.record_change('change_notice', NULL, jsonb_build_object('about', NEW.about, 'part', NEW.part), 1, NULL);
    RETURN NULL;
END $$;

CREATE TRIGGER notice_is_in_the_audit AFTER UPDATE ON forms.notice FOR EACH ROW EXECUTE FUNCTION forms.record_notice();

INSERT INTO forms.notice (about, part, text) VALUES
    ('received', 'case', 'We have received your application'),
    ('approved', 'message', 'Your application was approved'),
    ('approved', 'status', 'Approved'),
    ('declined', 'message', 'Your application was declined'),
    ('declined', 'status', 'Declined'),
    ('cancelled', 'status', 'Cancelled'),
    ('external', 'case', 'Expert help'),
    ('external', 'message', 'You have a new grant letter'),
    ('external', 'status', 'Approved');
