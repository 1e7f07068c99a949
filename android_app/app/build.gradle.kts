import org.jetbrains.kotlin.gradle.dsl.JvmTarget

plugins {
    alias(libs.plugins.android.application)
    alias(libs.plugins.kotlin.android)
    alias(libs.plugins.kotlin.serialization)
}

// tflite or litert: gradle.properties chooses.
val runtime: String = providers.gradleProperty("pocketune.runtime").get()

android {
    namespace = "org.pocketune.app"
    compileSdk = 34

    defaultConfig {
        applicationId = "org.pocketune.app"
        minSdk = 26
        targetSdk = 34
        versionCode = 200
        versionName = "0.2.0"
        ndk.abiFilters += listOf("arm64-v8a", "armeabi-v7a", "x86_64")
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_1_8
        targetCompatibility = JavaVersion.VERSION_1_8
    }

    // The program is mapped into memory. scripts/build_app_assets makes it.
    androidResources.noCompress += "tflite"
    sourceSets["main"].assets.srcDir("target/assets")
    sourceSets["main"].kotlin.srcDir("src/$runtime/kotlin")
}

kotlin {
    compilerOptions {
        jvmTarget = JvmTarget.JVM_1_8
        allWarningsAsErrors = true
    }
}

dependencies {
    implementation(project(":trainer"))
    implementation(project(":runtime-tflite"))
    if (runtime == "litert") implementation(project(":runtime-litert"))
    implementation(libs.coroutines.android)
    implementation(libs.serialization.json)
}
