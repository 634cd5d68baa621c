//! The OpenAPI document (version 3.1.0), made from the table of paths and from the types of answers.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use protocol::http::Method;
use protocol::http::server::ErrorStatus;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

use super::routes::{AnswerType, EVENT_STREAM, JsonType, ROUTES, Route};
use super::types::ProblemDocument;
use crate::tokens::Role;

/// The document, in JSON.
pub(super) static DOCUMENT: LazyLock<Vec<u8>> = LazyLock::new(|| document().to_string().into_bytes());

fn document() -> Value {
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in ROUTES {
        paths.entry(route.path).or_default().insert(method_key(route).to_owned(), operation(route));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Mailrace",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The HTTP API of a running server. Tokens are made by `mailrace token create`.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn method_key(route: &Route) -> &'static str {
    match route.method {
        Method::Post => "post",
        Method::Get | Method::Head => "get",
    }
}

fn operation(route: &Route) -> Value {
    let mut members = json!({
        "operationId": operation_id(route),
        "summary": route.summary,
        "parameters": parameters(route),
        "responses": responses(route),
        "security": match route.role {
            Some(_) => json!([{ "token": [] }]),
            None => json!([]),
        },
    });
    if let Some(role) = route.role {
        let needs = if role == Role::Operate { "Needs the role operate." } else { "Needs the role read or operate." };
        members["description"] = needs.into();
    }
    if let Some(content) = route.content {
        let schema = reference(content);
        members["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    } else if route.method == Method::Post {
        let nothing = json!({ "type": "object", "additionalProperties": false });
        members["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": nothing } } });
    }
    members
}

/// The name of the operation, without parentheses.
fn operation_id(route: &Route) -> String {
    format!("{:?}", route.operation).replace(['(', ')'], "")
}

/// The segments of the path that stand for something, and the members of the query's types.
fn parameters(route: &Route) -> Vec<Value> {
    let names = route.path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
    let in_path = |name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    let mut parameters: Vec<Value> = names.map(in_path).collect();
    for schema in route.query {
        let schema = schema_json(&schema());
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        let members = schema["properties"].as_object().cloned().unwrap_or_default();
        parameters.extend(members.into_iter().map(|(name, mut schema)| {
            let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
            let is_required = required.contains(&Value::from(name.as_str()));
            json!({
                "name": name,
                "in": "query",
                "required": is_required,
                "description": description.unwrap_or_else(|| "".into()),
                "schema": without_null(schema),
            })
        }));
    }
    parameters
}

/// A parameter that may be missing is never null.
fn without_null(mut schema: Value) -> Value {
    // Not by its index, which would add a type to a schema without one.
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = &types[..] {
            schema["type"] = only.clone();
        }
    }
    schema
}

/// Each status that a request of this path can get: there is no `default`, so that a status which is
/// missing here is a defect.
fn responses(route: &Route) -> Value {
    let content = match route.answer {
        AnswerType::Json(answer) => json!({ "application/json": { "schema": reference(answer) } }),
        AnswerType::AnyJson => json!({ "application/json": { "schema": { "type": "object" } } }),
        AnswerType::Text(content_type) => json!({ content_type: { "schema": { "type": "string" } } }),
        AnswerType::Message => json!({ "message/rfc822": {} }),
        AnswerType::Events => json!({ EVENT_STREAM: { "schema": { "type": "string" } } }),
    };
    let mut responses = Map::new();
    responses.insert("200".to_owned(), json!({ "description": "Success", "content": content }));
    if matches!(route.answer, AnswerType::Message) {
        let parts = json!({ "message/rfc822": {}, "multipart/byteranges": {} });
        responses.insert("206".to_owned(), json!({ "description": "The ranges asked for", "content": parts }));
        responses.insert("304".to_owned(), json!({ "description": "The client has it already" }));
        responses.insert("416".to_owned(), problem("Range Not Satisfiable"));
    }
    for status in problem_statuses(route) {
        let (code, phrase) = status.text().split_once(' ').unwrap_or_default();
        let mut response = problem(phrase);
        if let Some(field) = field_of(status) {
            response["headers"] = json!({ field: { "required": true, "schema": { "type": "string" } } });
        }
        responses.insert(code.to_owned(), response);
    }
    Value::Object(responses)
}

/// A problem with this phrase.
fn problem(phrase: &str) -> Value {
    let content = json!({ "application/problem+json": { "schema": reference(PROBLEM) } });
    json!({ "description": format!("{phrase}: a problem (RFC 9457)"), "content": content })
}

/// The errors that requests of a path can get, whatever their reason: the protocol, the checks before the
/// answer, or the answer itself.
fn problem_statuses(route: &Route) -> Vec<ErrorStatus> {
    let mut statuses = ANY_REQUEST.to_vec();
    if route.role.is_some() {
        statuses.extend([ErrorStatus::Unauthorized, ErrorStatus::Forbidden, ErrorStatus::TooManyRequests]);
    }
    if route.method == Method::Post {
        statuses.push(ErrorStatus::UnsupportedMediaType);
    }
    if matches!(route.answer, AnswerType::Message) {
        statuses.push(ErrorStatus::PreconditionFailed);
    }
    statuses.extend(route.operation.problems());
    statuses
}

/// What any request can get.
const ANY_REQUEST: [ErrorStatus; 10] = [
    ErrorStatus::BadRequest,
    ErrorStatus::MethodNotAllowed,
    ErrorStatus::RequestTimeout,
    ErrorStatus::ContentTooLarge,
    ErrorStatus::ExpectationFailed,
    ErrorStatus::MisdirectedRequest,
    ErrorStatus::HeadTooLarge,
    ErrorStatus::NotImplemented,
    ErrorStatus::Unavailable,
    ErrorStatus::VersionNotSupported,
];

/// The field that all responses with a status have.
fn field_of(status: ErrorStatus) -> Option<&'static str> {
    match status {
        ErrorStatus::Unauthorized => Some("WWW-Authenticate"),
        ErrorStatus::MethodNotAllowed => Some("Allow"),
        ErrorStatus::TooManyRequests => Some("Retry-After"),
        _ => None,
    }
}

const PROBLEM: JsonType =
    JsonType { name: ProblemDocument::name, schema: schema_of::<ProblemDocument>, add_parts: ProblemDocument::schemas };

fn schema_of<T: ToSchema>() -> RefOr<Schema> {
    T::schema()
}

fn reference(of: JsonType) -> Value {
    json!({ "$ref": format!("#/components/schemas/{}", (of.name)()) })
}

/// The types of contents and answers, and those that they refer to.
fn schemas() -> BTreeMap<String, Value> {
    let answers = ROUTES.iter().filter_map(|route| match route.answer {
        AnswerType::Json(answer) => Some(answer),
        AnswerType::AnyJson | AnswerType::Text(_) | AnswerType::Message | AnswerType::Events => None,
    });
    let mut found = Vec::new();
    for of in answers.chain(ROUTES.iter().filter_map(|route| route.content)).chain([PROBLEM]) {
        found.push(((of.name)().into_owned(), (of.schema)()));
        (of.add_parts)(&mut found);
    }
    found.into_iter().map(|(name, schema)| (name, schema_json(&schema))).collect()
}

/// Without the values that members have in place of missing ones: clients must not send them.
fn schema_json(schema: &RefOr<Schema>) -> Value {
    // A schema can always be written.
    let mut schema = serde_json::to_value(schema).unwrap_or_default();
    remove_defaults(&mut schema);
    schema
}

fn remove_defaults(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            members.remove("default");
            join_description(members);
            close_variants(members);
            members.values_mut().for_each(remove_defaults);
        }
        Value::Array(elements) => elements.iter_mut().for_each(remove_defaults),
        _ => {}
    }
}

/// A type and the comment of a member that has it come as two parts, of which the second would allow nothing
/// but objects.
fn join_description(members: &mut Map<String, Value>) {
    let Some([inner, comment]) = members.get("allOf").and_then(Value::as_array).map(Vec::as_slice) else { return };
    if comment.get("properties").is_some() || comment.get("description").is_none() {
        return;
    }
    let (mut joined, description) = (inner.clone(), comment["description"].clone());
    if let Some(inner) = joined.as_object_mut() {
        inner.insert("description".to_owned(), description);
        members.remove("allOf");
        members.append(inner);
    }
}

/// A variant that is an object has exactly one member.
fn close_variants(members: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = members.get_mut("oneOf") else { return };
    for variant in variants.iter_mut().filter_map(Value::as_object_mut) {
        if variant.contains_key("properties") {
            variant.insert("additionalProperties".to_owned(), false.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All references in a value.
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str));
                members.values().for_each(|member| references(member, found));
            }
            Value::Array(elements) => elements.iter().for_each(|element| references(element, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_of_the_document_leads_somewhere() {
        let document: Value = serde_json::from_slice(&DOCUMENT).unwrap();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 30, "{found:?}");
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }

    #[test]
    fn every_type_and_parameter_is_described() {
        let document: Value = serde_json::from_slice(&DOCUMENT).unwrap();
        let text = |value: &Value| serde_json::to_string_pretty(value).unwrap();
        insta::assert_snapshot!("openapi_schemas", text(&document["components"]["schemas"]));
        insta::assert_snapshot!("openapi_recipients", text(&document["paths"]["/api/v1/recipients"]));
        let mut operations = std::collections::BTreeSet::new();
        for path in document["paths"].as_object().unwrap().values() {
            for operation in path.as_object().unwrap().values() {
                assert!(operations.insert(operation["operationId"].as_str().unwrap()), "{operation}");
            }
        }
        assert_eq!(operations.len(), ROUTES.len());
    }

    #[test]
    fn every_status_is_listed_with_its_operation() {
        let document: Value = serde_json::from_slice(&DOCUMENT).unwrap();
        let mut lines = Vec::new();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let statuses: Vec<_> = operation["responses"].as_object().unwrap().keys().cloned().collect();
                lines.push(format!("{method} {path}: {}", statuses.join(" ")));
            }
        }
        insta::assert_snapshot!("openapi_statuses", lines.join("\n"));
    }
}
