-- Revokes the application's functions from PUBLIC, like those of the queue; see roles.sql.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA forms, checks, medical, callers FROM PUBLIC;
