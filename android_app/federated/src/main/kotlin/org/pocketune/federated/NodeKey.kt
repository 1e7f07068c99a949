package org.pocketune.federated

import java.security.KeyFactory
import java.security.KeyPair
import java.security.KeyPairGenerator
import java.security.Signature
import java.security.interfaces.ECPublicKey
import java.security.spec.ECGenParameterSpec
import java.security.spec.PKCS8EncodedKeySpec
import java.security.spec.X509EncodedKeySpec
import okio.ByteString.Companion.toByteString

/**
 * A P-384 key by which a server knows this client. An app keeps one in the Android keystore: a key pair of the provider
 * `AndroidKeyStore` is given to [KeyPairOf] as any other is, and never leaves the device's hardware.
 */
interface NodeKey {
    /** The public half: PEM of a SubjectPublicKeyInfo. */
    val publicPem: ByteArray

    /** The DER signature ECDSA with SHA-256 of some bytes. */
    fun sign(bytes: ByteArray): ByteArray
}

/** A key of `java.security`. */
class KeyPairOf(private val pair: KeyPair) : NodeKey {
    init {
        val field = (pair.public as? ECPublicKey)?.params?.order?.bitLength()
        require(field == P384) { "expected a P-384 key, got ${pair.public.algorithm} of $field bits" }
    }

    override val publicPem: ByteArray = pem("PUBLIC KEY", pair.public.encoded)

    override fun sign(bytes: ByteArray): ByteArray =
        Signature.getInstance("SHA256withECDSA").run {
            initSign(pair.private)
            update(bytes)
            sign()
        }

    companion object {
        private const val P384 = 384

        /** A new key, to be kept: a server counts each key as a client of its own. */
        fun generate(): KeyPair =
            KeyPairGenerator.getInstance("EC").apply { initialize(ECGenParameterSpec("secp384r1")) }.generateKeyPair()

        /** A key that was kept as PKCS #8, with its public half as SubjectPublicKeyInfo. */
        fun of(private: ByteArray, public: ByteArray): KeyPair = KeyFactory.getInstance("EC").run {
            KeyPair(generatePublic(X509EncodedKeySpec(public)), generatePrivate(PKCS8EncodedKeySpec(private)))
        }
    }
}

/** PEM as `cryptography` writes it: lines of 64, a newline at the end. */
private fun pem(kind: String, der: ByteArray): ByteArray =
    (listOf("-----BEGIN $kind-----") + der.toByteString().base64().chunked(64) + "-----END $kind-----\n")
        .joinToString("\n").toByteArray(Charsets.US_ASCII)
