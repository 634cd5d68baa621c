//! A complete message as a milter gets it: fields, body, end. The Received field of this server is
//! not shown, as in Sendmail and Postfix; all other fields before the content are. For a milter that wants
//! neither fields nor the body, the message is not read.
//!
//! Only the end waits for all answers before it: what a milter does then may leave its process.

use protocol::milter::{BODY_CHUNK_OCTETS_MAX, MacroValues, MilterAnswer, MilterCommand, MilterStep};

use super::connection::MilterConnection;
use super::failure::MilterFailure;
use crate::check::CheckedMessage;
use crate::header;

/// Sends the message. The answer is the first that is not to continue, or that to its end.
pub(super) async fn send(
    connection: &mut MilterConnection,
    message: &mut dyn CheckedMessage,
    macros: &dyn MacroValues,
) -> Result<MilterAnswer, MilterFailure> {
    let wants_content = connection
        .client()
        .is_some_and(|client| [MilterStep::Header, MilterStep::Body].into_iter().any(|step| client.wants(step)));
    let answer = match wants_content {
        true => send_content(connection, message, macros).await?,
        false => connection.send_ahead(&MilterCommand::EndOfHeader, macros).await?,
    };
    if answer != MilterAnswer::Continue {
        return Ok(answer);
    }
    let answer = connection.settle().await?;
    if answer != MilterAnswer::Continue {
        return Ok(answer);
    }
    connection.ask_about_message(message, macros).await
}

/// The fields, the end of the header, and the body.
async fn send_content(
    connection: &mut MilterConnection,
    message: &mut dyn CheckedMessage,
    macros: &dyn MacroValues,
) -> Result<MilterAnswer, MilterFailure> {
    let header = header::read(message).await.map_err(MilterFailure::Unreadable)?;
    let header = header.ok_or(MilterFailure::HeaderTooLong)?;
    let answer = send_fields(connection, message.prefix(), &header, macros).await?;
    if answer != MilterAnswer::Continue {
        return Ok(answer);
    }
    let answer = connection.send_ahead(&MilterCommand::EndOfHeader, macros).await?;
    if answer != MilterAnswer::Continue {
        return Ok(answer);
    }
    send_body(connection, message, header.len() as u64, macros).await
}

async fn send_fields(
    connection: &mut MilterConnection,
    prefix: &[u8],
    header: &[u8],
    macros: &dyn MacroValues,
) -> Result<MilterAnswer, MilterFailure> {
    let own = own_received(prefix);
    let shown = header::fields(prefix).filter(|field| own.is_none_or(|own| !std::ptr::eq(*field, own)));
    for field in shown.chain(header::fields(header)) {
        let field = field.strip_suffix(b"\r\n").unwrap_or(field);
        // What has no colon is no field, but was let in as one.
        let Some(colon) = field.iter().position(|octet| *octet == b':') else { continue };
        let command = MilterCommand::Header { name: field[..colon].trim_ascii_end(), value: &field[colon + 1..] };
        let answer = connection.send_ahead(&command, macros).await?;
        if answer != MilterAnswer::Continue {
            return Ok(answer);
        }
    }
    Ok(MilterAnswer::Continue)
}

/// The Received field of this server: the client's are in the content.
pub(super) fn own_received(prefix: &[u8]) -> Option<&[u8]> {
    header::fields(prefix).find(|field| header::is_named(field, "Received"))
}

async fn send_body(
    connection: &mut MilterConnection,
    message: &mut dyn CheckedMessage,
    header_octets: u64,
    macros: &dyn MacroValues,
) -> Result<MilterAnswer, MilterFailure> {
    let mut position = header_octets + b"\r\n".len() as u64;
    while connection.client().is_some_and(|client| client.wants(MilterStep::Body)) {
        let chunk = message.read_content(position).await.map_err(MilterFailure::Unreadable)?;
        let chunk = &chunk[..chunk.len().min(BODY_CHUNK_OCTETS_MAX)];
        if chunk.is_empty() {
            break;
        }
        let answer = connection.send_ahead(&MilterCommand::Body(chunk), macros).await?;
        if answer != MilterAnswer::Continue {
            return Ok(answer);
        }
        position += chunk.len() as u64;
    }
    Ok(MilterAnswer::Continue)
}
