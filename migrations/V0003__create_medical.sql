-- The tables of the medical jobs, in a schema of their own. One table holds all entities of patients. The
-- jobs require the same few conditions of every kind of entity (whether it exists, its state, its owner, and
-- whether it equals the signed content), so thirteen tables would repeat the same columns thirteen times.

CREATE SCHEMA medical;

CREATE TABLE medical.entity (
    kind            text        NOT NULL,
    -- Of all kinds together, because a tree names its parts by their id alone.
    id              uuid        PRIMARY KEY,
    patient_id      uuid        NOT NULL,
    -- The entity it is part of: an encounter's episode, an observation's encounter or report.
    parent_id       uuid,
    -- The legal entity it belongs to.
    organization_id uuid        NOT NULL,
    status          text        NOT NULL,
    -- The content that was requested or signed. A later signature is compared with it.
    content         jsonb       NOT NULL,
    -- Facts that later jobs have added: who uses it, why it was closed.
    facts           jsonb       NOT NULL DEFAULT '{}',
    expires_at      timestamptz,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT status_is_one_of_its_kind CHECK (status = ANY (CASE kind
        WHEN 'episode'              THEN ARRAY['active', 'closed', 'entered_in_error']
        WHEN 'encounter'            THEN ARRAY['finished', 'entered_in_error']
        WHEN 'condition'            THEN ARRAY['active', 'entered_in_error']
        WHEN 'observation'          THEN ARRAY['valid', 'entered_in_error']
        WHEN 'immunization'         THEN ARRAY['completed', 'entered_in_error']
        WHEN 'allergy_intolerance'  THEN ARRAY['active', 'entered_in_error']
        WHEN 'risk_assessment'      THEN ARRAY['final', 'entered_in_error']
        WHEN 'device'               THEN ARRAY['active', 'entered_in_error']
        WHEN 'medication_statement' THEN ARRAY['active', 'entered_in_error']
        WHEN 'diagnostic_report'    THEN ARRAY['final', 'entered_in_error']
        WHEN 'procedure'            THEN ARRAY['completed', 'entered_in_error']
        WHEN 'service_request'      THEN ARRAY['active', 'in_progress', 'completed', 'recalled', 'entered_in_error']
        WHEN 'approval'             THEN ARRAY['new', 'active', 'entered_in_error']
        -- A kind that is not listed here has no allowed state.
        ELSE ARRAY[]::text[] END)),
    CONSTRAINT content_is_an_object CHECK (jsonb_typeof(content) = 'object'),
    CONSTRAINT facts_is_an_object CHECK (jsonb_typeof(facts) = 'object'),
    CONSTRAINT service_requests_and_no_others_expire CHECK ((kind = 'service_request') = (expires_at IS NOT NULL))
);

CREATE INDEX entity_patient ON medical.entity (patient_id);
CREATE INDEX entity_parent ON medical.entity (parent_id) WHERE parent_id IS NOT NULL;

-- Who changed which entity of a patient, and at whose request. Each change has one row, committed together
-- with it.
CREATE TABLE medical.audit (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The job's id in the queue and later in the log. There is no foreign key, because the log is not kept
    -- forever. Null for changes made at once, without a job.
    event_id      bigint,
    event_kind    text        NOT NULL,
    request_id    text        NOT NULL,
    user_id       uuid        NOT NULL,
    client_id     uuid        NOT NULL,
    patient_id    uuid        NOT NULL,
    entity_kind   text        NOT NULL,
    entity_id     uuid        NOT NULL,
    -- Null if the change created the entity.
    status_before text,
    status_after  text        NOT NULL,
    -- A job changes an entity once. This also reveals if a job runs twice.
    CONSTRAINT a_job_changes_an_entity_once UNIQUE (event_id, entity_kind, entity_id)
);

CREATE INDEX audit_patient ON medical.audit (patient_id, id);

-- Uses the queue's function, because it does exactly what is needed and exists in every database of this
-- program.
CREATE TRIGGER audit_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON medical.audit
    FOR EACH STATEMENT EXECUTE FUNCTION @tidegate.refuse_change();
