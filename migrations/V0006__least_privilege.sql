-- The application's functions are not PUBLIC's, as the queue's are not; see roles.sql.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA forms, checks, medical, callers FROM PUBLIC;
