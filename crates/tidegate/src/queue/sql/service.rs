//! Statements about outside services.

use super::statements;

statements! {
    /// Reports the results of a worker's calls of a service.
    pub REPORT_SERVICE: "report_service" [TEXT, UUID, BOOL, INT4, TEXT, FLOAT8, TEXT_ARRAY, BOOL, TEXT] =
        "SELECT tidegate.report_service($1, $2, $3, $4, $5, $6, $7, $8, $9)::text";

    /// Requests places and starts at a limited service.
    pub CLAIM_SERVICE: "claim_service" [TEXT, UUID, INT4, INT4, INT4, FLOAT8] =
        "SELECT c.places, c.starting, c.first_in, c.apart FROM tidegate.claim_service($1, $2, $3, $4, $5, $6) AS c";

    /// All services about which anything was reported.
    pub SERVICES: "services" [] =
        "SELECT to_jsonb(s)::text FROM tidegate.services AS s ORDER BY s.state = 'closed', s.since, s.service";
}
