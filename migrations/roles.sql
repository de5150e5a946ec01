-- What the queue's roles may do with this program's own tables. Runs after the queue's own grants, where the roles are in use.

GRANT USAGE ON SCHEMA forms, checks TO tidegate_publish;
GRANT SELECT, INSERT, UPDATE ON forms.form TO tidegate_publish;
GRANT SELECT, INSERT ON forms.message, checks.issuing_check TO tidegate_publish;
GRANT UPDATE (due_at, work_statusom, updated_at) ON checks.issuing_check TO tidegate_publish;
GRANT SELECT ON forms.awarded_grant TO tidegate_publish;

GRANT USAGE ON SCHEMA forms, checks, medical TO tidegate_drain;
GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA forms, checks, medical TO tidegate_drain;
GRANT EXECUTE ON FUNCTION checks.take_place TO tidegate_drain;
