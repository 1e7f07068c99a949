package org.pocketune.federated.work

import android.security.keystore.KeyGenParameterSpec
import android.security.keystore.KeyProperties
import java.security.KeyPair
import java.security.KeyPairGenerator
import java.security.KeyStore
import java.security.spec.ECGenParameterSpec
import org.pocketune.federated.KeyPairOf
import org.pocketune.federated.NodeKey

/** A client's key in the Android keystore: its private half never leaves the phone's hardware. */
object KeystoreKey {
    private const val KEYSTORE = "AndroidKeyStore"

    /** The key of an alias, made where there is none. A server counts each key as a client of its own. */
    fun of(alias: String = "pocketune-federated"): NodeKey {
        val store = KeyStore.getInstance(KEYSTORE).apply { load(null) }
        val kept = store.getEntry(alias, null) as? KeyStore.PrivateKeyEntry
        return KeyPairOf(kept?.let { KeyPair(it.certificate.publicKey, it.privateKey) } ?: made(alias))
    }

    private fun made(alias: String): KeyPair {
        val spec = KeyGenParameterSpec.Builder(alias, KeyProperties.PURPOSE_SIGN)
            .setAlgorithmParameterSpec(ECGenParameterSpec("secp384r1")).setDigests(KeyProperties.DIGEST_SHA256).build()
        return KeyPairGenerator.getInstance(KeyProperties.KEY_ALGORITHM_EC, KEYSTORE).apply { initialize(spec) }.generateKeyPair()
    }
}
