//! The changes that actions of access(5) make to a message, as access tables and policy services name
//! them: PREPEND, BCC, REDIRECT and FILTER.

use mail::{Address, AddressError, FILTER_FIELD};
use protocol::policy::PolicyAction;

use crate::edit::{Edit, Field, InvalidField, without_brackets};

/// Why an action cannot change a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidActionEdit {
    #[error("a field that is invalid: {0}")]
    Field(#[from] InvalidField),
    #[error("an address that is invalid: {0}")]
    Address(#[from] AddressError),
}

/// The change; None: the action makes none.
pub(crate) fn action_edit(action: &PolicyAction) -> Result<Option<Edit>, InvalidActionEdit> {
    Ok(match action {
        PolicyAction::Prepend(text) => Some(Edit::PrependField(field(text)?)),
        PolicyAction::Bcc(address) => Some(Edit::add_recipient(parse_address(address)?)),
        PolicyAction::Redirect(address) => Some(Edit::Redirect(parse_address(address)?)),
        PolicyAction::Filter(destination) => Some(Edit::PrependField(Field::new(FILTER_FIELD, destination)?)),
        _ => None,
    })
}

fn field(text: &str) -> Result<Field, InvalidField> {
    let (name, value) = text.split_once(':').ok_or(InvalidField)?;
    Field::new(name, value.trim_start())
}

fn parse_address(text: &str) -> Result<Address, AddressError> {
    without_brackets(text).parse()
}
