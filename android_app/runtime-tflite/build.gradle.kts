import org.jetbrains.kotlin.gradle.dsl.JvmTarget

plugins {
    alias(libs.plugins.android.library)
    alias(libs.plugins.kotlin.android)
}

android {
    namespace = "org.pocketune.runtime.tflite"
    compileSdk = 34
    defaultConfig.minSdk = 26
    defaultConfig.consumerProguardFiles("../consumer-rules.pro")
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_1_8
        targetCompatibility = JavaVersion.VERSION_1_8
    }
}

kotlin {
    compilerOptions {
        jvmTarget = JvmTarget.JVM_1_8
        allWarningsAsErrors = true
    }
}

dependencies {
    api(project(":trainer"))
    // Both have the same Java package; gradle.properties chooses.
    if (providers.gradleProperty("pocketune.runtime").get() == "litert") {
        implementation(libs.litert)
        implementation(libs.litert.gpu)
        implementation(libs.litert.gpu.api)
    } else {
        implementation(libs.tflite)
        implementation(libs.tflite.gpu)
        implementation(libs.tflite.gpu.api)
    }
}
