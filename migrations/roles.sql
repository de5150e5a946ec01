-- The rights of the queue's roles on this program's own tables, a role for systems that submit data, and one
-- for whoever lets them call. It runs after the queue's own grants, if the roles are used.
--
-- tidegate_intake   submit forms, letters, cancellations, declines and checks, request medical jobs, read
--                   forms and the entities of a patient, and confirm an approval. It may also publish.
-- tidegate_callers  create, list and revoke API keys, and rotate the key of the links; it can read neither. A
--                   key can be for every client, so who operates the queue does not have this role.
-- tidegate_operate  change the texts that companies read.
-- A role that only publishes cannot read these tables.

SELECT @tidegate.make_role(r) FROM unnest(ARRAY['@tidegate_intake', '@tidegate_callers']) AS r;

GRANT USAGE ON SCHEMA @tidegate TO @tidegate_intake;
GRANT EXECUTE ON FUNCTION @tidegate.should_wake, @tidegate.publish, @tidegate.publish_one, @tidegate.publish_many, @tidegate.publish_batch,
                          @tidegate.receive, @tidegate.default_max_attempts, @tidegate.job, @tidegate.due_at
   TO @tidegate_intake;
GRANT USAGE ON SCHEMA forms, checks, medical TO @tidegate_intake;
GRANT SELECT, INSERT, UPDATE ON forms.form TO @tidegate_intake;
GRANT EXECUTE ON FUNCTION forms.steps, forms.opening TO @tidegate_intake;
GRANT SELECT, INSERT ON forms.message, checks.issuing_check TO @tidegate_intake;
GRANT UPDATE (due_at, work_statusom, updated_at) ON checks.issuing_check TO @tidegate_intake;
GRANT SELECT ON forms.awarded_grant, medical.entity TO @tidegate_intake;
-- For the confirmation of an approval.
GRANT UPDATE (status, content, facts, updated_at) ON medical.entity TO @tidegate_intake;
GRANT INSERT, SELECT (id) ON medical.audit TO @tidegate_intake;
-- To look up a caller's key, and to sign links.
GRANT USAGE ON SCHEMA callers TO @tidegate_intake, @tidegate_callers;
GRANT EXECUTE ON FUNCTION callers.api_key_of TO @tidegate_intake;
GRANT SELECT (id, secret) ON callers.link_key TO @tidegate_intake;
GRANT EXECUTE ON FUNCTION callers.create_api_key, callers.revoke_api_key, callers.rotate_link_key TO @tidegate_callers;
GRANT SELECT (id, label, client_id, user_id, scopes, created_at, expires_at, revoked_at) ON callers.api_key TO @tidegate_callers;
-- To check whether the schema is the one that the program expects.
GRANT SELECT ON @tidegate.queue_migrations, @tidegate.app_migrations TO @tidegate_intake;
GRANT SELECT (kind) ON @tidegate.event_kind TO @tidegate_intake;

GRANT USAGE ON SCHEMA forms, checks, medical TO @tidegate_drain;
GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA forms, checks, medical TO @tidegate_drain;
REVOKE INSERT, UPDATE ON forms.notice FROM @tidegate_drain;
GRANT EXECUTE ON FUNCTION forms.opening, checks.take_place TO @tidegate_drain;

GRANT USAGE ON SCHEMA forms, checks, medical TO @tidegate_operate;
GRANT SELECT, UPDATE (text) ON forms.notice TO @tidegate_operate;
