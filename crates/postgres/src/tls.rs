//! TLS by the address: `sslmode` and `sslrootcert` mean what they mean everywhere else.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How the server's certificate is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    /// `disable`.
    NeverEncrypted,
    /// `prefer` and `require`: protects against eavesdropping, not against an impostor.
    Nothing {
        /// Whether a server without TLS is an error.
        required: bool,
    },
    /// `verify-ca`, and `require` with a root certificate: signed by a trusted authority.
    Chain,
    /// `verify-full`: signed by a trusted authority, and issued for the host of the address.
    Full,
}

/// The TLS options of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsOptions {
    pub(crate) verify: Verify,
    roots: Option<PathBuf>,
}

/// Separates the TLS options from an address; the rest is for the driver, which knows fewer of them.
pub(crate) fn split_options(url: &str) -> Result<(String, TlsOptions), String> {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let (mut mode, mut roots, mut others) = (None, None, Vec::new());
    for option in query.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("sslmode", value)) => mode = Some(value),
            Some(("sslrootcert", value)) => roots = Some(PathBuf::from(decode(value)?)),
            Some(_) | None => others.push(option),
        }
    }
    let verify = match mode.unwrap_or("prefer") {
        "disable" => Verify::NeverEncrypted,
        "prefer" => Verify::Nothing { required: false },
        "require" if roots.is_some() => Verify::Chain,
        "require" => Verify::Nothing { required: true },
        "verify-ca" => Verify::Chain,
        "verify-full" => Verify::Full,
        other => {
            return Err(format!(
                "sslmode is {other}: use disable, prefer, require, verify-ca or verify-full"
            ));
        }
    };
    let rest = match others.is_empty() {
        true => address.to_owned(),
        false => format!("{address}?{}", others.join("&")),
    };
    Ok((rest, TlsOptions { verify, roots }))
}

impl TlsOptions {
    /// The driver's TLS connector with these options.
    pub(crate) fn connector(&self) -> Result<MakeRustlsConnect, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let chain = match self.verify {
            Verify::Full => {
                let builder = builder.with_root_certificates(self.trusted()?);
                return Ok(MakeRustlsConnect::new(builder.with_no_client_auth()));
            }
            Verify::Chain => {
                let roots = Arc::new(self.trusted()?);
                let full =
                    WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
                Some(full.build().map_err(|error| error.to_string())?)
            }
            Verify::Nothing { .. } | Verify::NeverEncrypted => None,
        };
        let config = builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(LenientVerifier { provider, chain }))
            .with_no_client_auth();
        Ok(MakeRustlsConnect::new(config))
    }

    /// The certificates of the named file, or those that this machine trusts.
    fn trusted(&self) -> Result<RootCertStore, String> {
        let mut store = RootCertStore::empty();
        let certificates: Vec<CertificateDer<'static>> = match &self.roots {
            Some(path) => CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect)
                .map_err(|error| format!("sslrootcert {}: {error}", path.display()))?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let (added, _unusable) = store.add_parsable_certificates(certificates);
        if added == 0 {
            return Err(
                "there is no root certificate to verify the server with: name one with sslrootcert=PATH"
                    .into(),
            );
        }
        Ok(store)
    }
}

/// Accepts certificates that full verification refuses: with another host name, or (without a chain) any. The
/// handshake itself is always checked.
#[derive(Debug)]
struct LenientVerifier {
    provider: Arc<CryptoProvider>,
    chain: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for LenientVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verdict @ (Ok(_) | Err(_)) => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// A percent-encoded value.
fn decode(value: &str) -> Result<String, String> {
    let bad = || format!("{value} is not percent-encoded text");
    let mut bytes = Vec::with_capacity(value.len());
    let mut left = value.as_bytes();
    while let Some((byte, rest)) = left.split_first() {
        left = rest;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let (digits, rest) = left.split_at_checked(2).ok_or_else(bad)?;
        let digits = std::str::from_utf8(digits).map_err(|_not_text| bad())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_not_hex| bad())?);
        left = rest;
    }
    String::from_utf8(bytes).map_err(|_not_text| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(url: &str) -> (String, TlsOptions) {
        split_options(url).unwrap()
    }

    #[test]
    fn tls_options_are_removed_and_the_rest_stays() {
        let (rest, tls) = split("postgres://a@h/d?sslmode=verify-full&x=1&sslrootcert=/a%20b.pem");
        assert_eq!(rest, "postgres://a@h/d?x=1");
        assert_eq!(tls.verify, Verify::Full);
        assert_eq!(tls.roots, Some(PathBuf::from("/a b.pem")));
        let (rest, tls) = split("postgres://a@h/d");
        assert_eq!(rest, "postgres://a@h/d");
        assert_eq!(tls.verify, Verify::Nothing { required: false });
    }

    #[test]
    fn root_certificate_makes_require_verify_the_chain() {
        let (_, tls) = split("postgres://h/d?sslmode=require");
        assert_eq!(tls.verify, Verify::Nothing { required: true });
        let (_, tls) = split("postgres://h/d?sslrootcert=/a.pem&sslmode=require");
        assert_eq!(tls.verify, Verify::Chain);
    }

    #[test]
    fn unknown_mode_is_refused_with_the_list_of_modes() {
        let error = split_options("postgres://h/d?sslmode=on").unwrap_err();
        assert!(error.contains("verify-full"), "{error}");
        assert!(split_options("postgres://h/d?sslrootcert=%zz").is_err());
        assert!(split_options("postgres://h/d?sslrootcert=%2").is_err());
    }

    #[test]
    fn missing_root_certificate_is_named() {
        let (_, tls) = split("postgres://h/d?sslmode=verify-full&sslrootcert=/nowhere.pem");
        let error = tls.connector().err().unwrap();
        assert!(error.contains("/nowhere.pem"), "{error}");
    }
}
